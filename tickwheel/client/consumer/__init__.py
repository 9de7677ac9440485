"""Receiving: subscriptions, messages, acks and leases."""
