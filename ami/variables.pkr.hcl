# No variable turns the GPU gate off, and none holds a secret: credentials come from the
# environment of the one who builds.

variable "version" {
  type        = string
  description = "Version of the image, as in CHANGELOG.md, for example 0.1.0."
}

variable "commit" {
  type        = string
  description = "Git commit that the wheel was built from."
}

variable "wheel" {
  type        = string
  description = "Path of this project's wheel."
}

variable "wheel_sha256" {
  type        = string
  description = "SHA-256 of that file, from the job that built it."
}

variable "entitlement" {
  type        = string
  description = "Path of the product's entitlement.json (docs/entitlement.md): mode, product code and pinned key."
}

variable "region" {
  type        = string
  description = "Where the build runs. AWS Marketplace takes images from us-east-1 only."
  default     = "us-east-1"
}

variable "copy_to_regions" {
  type        = list(string)
  description = "Where the image is copied; the list of ImageByRegion in the template."
  default     = ["us-east-2", "us-west-2", "eu-central-1", "eu-north-1", "ap-northeast-1"]
}

variable "instance_type" {
  type        = string
  description = "A g6 or g6e size: the gate needs its GPU."
  default     = "g6.xlarge"
  validation {
    condition     = contains(["g6", "g6e"], split(".", var.instance_type)[0])
    error_message = "The gate needs an L4 or L40S: choose a g6 or g6e size."
  }
}

variable "driver_branch" {
  type        = string
  description = "Branch of the NVIDIA server driver in Ubuntu's archive. CUDA 13 needs 580."
  default     = "580"
}

variable "encrypt_boot" {
  type        = bool
  description = "Encrypts the image's snapshot. AWS Marketplace takes unencrypted ones only: false for that listing alone. The template encrypts the volume of every instance either way."
  default     = true
}

variable "subnet_id" {
  type        = string
  description = "Subnet to build in; empty takes the default VPC."
  default     = ""
}

variable "manifest" {
  type        = string
  description = "Where the ids of the images are written."
  default     = "manifest.json"
}
