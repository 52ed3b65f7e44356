# Launches an image that runner.pkr.hcl made, checks it against image.goss.yaml as it came up,
# and throws the instance away. Makes no image. Run it on every release, before its ids go
# into the template.

variable "ami" {
  type        = string
  description = "Id of the image."
}

variable "region" {
  type    = string
  default = "us-east-1"
}

variable "instance_type" {
  type        = string
  description = "Run once with a g6 and once with a g6e size."
  default     = "g6.xlarge"
}

variable "subnet_id" {
  type    = string
  default = ""
}

variable "without" {
  type        = string
  description = "Checks to leave out, for a machine that cannot answer them, as options of check_image.py."
  default     = ""
}

source "amazon-ebs" "launched" {
  region          = var.region
  instance_type   = var.instance_type
  subnet_id       = var.subnet_id
  source_ami      = var.ami
  ami_name        = "s4weights-runner-verify-${var.ami}"
  skip_create_ami = true
  run_tags        = { Name = "s4weights-runner-verify" }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  communicator                              = "ssh"
  ssh_username                              = "ubuntu"
  ssh_timeout                               = "15m"
  temporary_key_pair_type                   = "ed25519"
  temporary_security_group_source_public_ip = true
}

build {
  sources = ["source.amazon-ebs.launched"]

  provisioner "shell" {
    inline = [
      "cloud-init status --wait",
      "sudo -n /opt/s4weights/bin/python -I /usr/share/s4weights/check_image.py ${var.without}",
    ]
  }
}
