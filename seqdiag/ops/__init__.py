"""Every implementation of attention, of the scans and of the linear memories.

An op is one signature with one plain reference; an implementation is a named function beside
`why_not(problem, device)`, which says why it cannot run a problem, or None.
"""
