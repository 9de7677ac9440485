"""A shop: orders that are paid, or cancelled."""
