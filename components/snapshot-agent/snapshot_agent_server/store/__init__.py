"""What must survive the agent: fences, registrations, operations. SQLite."""
