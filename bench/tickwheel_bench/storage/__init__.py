"""What pending messages cost on disk, in memory and in the wheel."""
