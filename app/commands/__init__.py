"""The command line's commands, one file a group. Imports that cost time stay inside the commands."""
