"""Run one handler in a process of its own: the parent's side and the child's."""
