# The image of the training runner: Ubuntu 22.04 with a pinned driver, a locked Python
# environment and this project's wheel, tested on the GPU before it may exist.
#
#   install -> reboot -> GPU gate -> seal -> validate
#
# Any step that fails ends the build: the instance is terminated and no image is made.

locals {
  build = "/tmp/s4-build"
  tags = {
    Name         = "s4weights-runner-${var.version}"
    Version      = var.version
    Commit       = var.commit
    WheelSha256  = var.wheel_sha256
    DriverBranch = var.driver_branch
    SourceAmi    = "{{ .SourceAMI }}"
    SourceName   = "{{ .SourceAMIName }}"
  }
}

source "amazon-ebs" "runner" {
  region        = var.region
  instance_type = var.instance_type
  subnet_id     = var.subnet_id

  source_ami_filter {
    owners      = ["099720109477"] # Canonical
    most_recent = true
    filters = {
      name                = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*"
      architecture        = "x86_64"
      root-device-type    = "ebs"
      virtualization-type = "hvm"
    }
  }

  ami_name                = "s4weights-runner-${var.version}"
  ami_description         = "S4 Weights training runner ${var.version} on Ubuntu 22.04"
  ami_virtualization_type = "hvm"
  ami_regions             = var.copy_to_regions
  ena_support             = true
  imds_support            = "v2.0"
  encrypt_boot            = var.encrypt_boot
  tags                    = local.tags
  snapshot_tags           = local.tags
  run_tags                = { Name = "s4weights-runner-build" }
  run_volume_tags         = { Name = "s4weights-runner-build" }

  launch_block_device_mappings {
    device_name           = "/dev/sda1"
    volume_type           = "gp3"
    volume_size           = 60
    iops                  = 3000
    throughput            = 250
    delete_on_termination = true
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  # A key of this build alone, from this machine's address alone.
  communicator                              = "ssh"
  ssh_username                              = "ubuntu"
  ssh_timeout                               = "15m"
  ssh_clear_authorized_keys                 = true
  temporary_key_pair_type                   = "ed25519"
  temporary_security_group_source_public_ip = true
}

build {
  sources = ["source.amazon-ebs.runner"]

  provisioner "shell" {
    script            = "${path.root}/scripts/10-driver.sh"
    execute_command   = "sudo -n env {{ .Vars }} bash '{{ .Path }}'"
    environment_vars  = ["DRIVER_BRANCH=${var.driver_branch}"]
    expect_disconnect = false
  }

  # The gate must see the kernel and the driver that customers will boot.
  provisioner "shell" {
    inline            = ["sudo -n systemctl reboot"]
    expect_disconnect = true
  }

  # After the reboot, which empties /tmp.
  provisioner "shell" {
    pause_before = "30s"
    inline       = ["mkdir -p ${local.build}/dist ${local.build}/deploy"]
  }

  provisioner "file" {
    source      = "${path.root}/files"
    destination = local.build
  }

  provisioner "file" {
    source      = "${path.root}/requirements"
    destination = local.build
  }

  provisioner "file" {
    source      = "${path.root}/image.goss.yaml"
    destination = "${local.build}/image.goss.yaml"
  }

  provisioner "file" {
    source      = "${path.root}/../deploy/"
    destination = "${local.build}/deploy"
  }

  provisioner "file" {
    source      = var.wheel
    destination = "${local.build}/dist/"
  }

  provisioner "file" {
    source      = var.entitlement
    destination = "${local.build}/entitlement.json"
  }

  provisioner "shell" {
    scripts          = ["${path.root}/scripts/20-python.sh", "${path.root}/scripts/30-runner.sh"]
    execute_command  = "sudo -n env {{ .Vars }} bash '{{ .Path }}'"
    environment_vars = ["BUILD=${local.build}", "WHEEL_SHA256=${var.wheel_sha256}"]
  }

  provisioner "shell" {
    script           = "${path.root}/scripts/40-gpu-gate.sh"
    execute_command  = "sudo -n env {{ .Vars }} bash '{{ .Path }}'"
    environment_vars = ["BUILD=${local.build}", "DRIVER_BRANCH=${var.driver_branch}"]
  }

  # The record of the gate stays with the release, too.
  provisioner "file" {
    direction   = "download"
    source      = "/usr/share/s4weights/gate.json"
    destination = "${var.manifest}.gate.json"
  }

  provisioner "shell" {
    script           = "${path.root}/scripts/50-seal.sh"
    execute_command  = "sudo -n env {{ .Vars }} bash '{{ .Path }}'"
    environment_vars = ["BUILD=${local.build}"]
  }

  provisioner "shell" {
    script           = "${path.root}/scripts/60-validate.sh"
    execute_command  = "sudo -n env {{ .Vars }} bash '{{ .Path }}'"
    environment_vars = ["BUILD=${local.build}"]
  }

  post-processor "manifest" {
    output     = var.manifest
    strip_path = true
    custom_data = {
      version      = var.version
      commit       = var.commit
      wheel_sha256 = var.wheel_sha256
    }
  }
}
