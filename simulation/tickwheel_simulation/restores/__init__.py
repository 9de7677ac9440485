"""Backups that are restored while clients live on."""
