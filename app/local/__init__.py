"""The parts of a system on this one machine: broker, worker, controller, dashboard, trainer.

Not a supervisor of machines: it starts processes here, watches them, and leaves nothing behind.
"""
