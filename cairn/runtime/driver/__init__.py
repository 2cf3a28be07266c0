"""What runs on the driver: the front that users call, the plan, the routing of rows to tasks.

Imports of the runtime: everything below it.
"""
