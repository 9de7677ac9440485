"""Who watches the broker: vitals, metrics, service managers."""
