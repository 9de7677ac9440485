"""The shared log on Apache Kafka."""
