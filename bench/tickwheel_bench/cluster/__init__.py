"""What the log of a cluster costs: Apache Kafka beside it, on the same machine."""
