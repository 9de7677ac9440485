"""A shared log and a membership by Apache Kafka: the only modules that know it."""
