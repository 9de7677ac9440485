"""Several processes of the gateway on one port, and the one that starts them."""
