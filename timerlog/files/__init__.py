"""Each system call of the engine: the disk seam, mapped files, held space, the lock."""
