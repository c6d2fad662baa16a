"""Third-party servers for tests, started on free loopback ports, and the Maven poms of their jars."""
