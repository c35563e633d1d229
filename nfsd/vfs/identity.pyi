"""Whom a thread's system calls act as. Native code only: nothing here is for Python."""
