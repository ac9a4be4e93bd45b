"""The typed intermediate representation: what a kernel means, independent of any machine."""
