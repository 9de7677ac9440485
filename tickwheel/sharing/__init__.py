"""What the processes beside a broker have in common: `tickwheel web`, `tickwheel push` and `tickwheel gateway`."""
