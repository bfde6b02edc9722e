"""Sources and sinks, local sessions, and running queries seen from outside."""
