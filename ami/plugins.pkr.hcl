# Kept in a file of its own: Packer 1.6 has no required_plugins and its builders are built in.
packer {
  required_version = ">= 1.9.0"
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1.3"
    }
  }
}
