"""Tasks that do a little at a time, beside everything else."""
