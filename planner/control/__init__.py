"""The parts of the controller: what it knows of a run, and what it does about it.

`planner.controller` is the process, `loop` its rounds; `run` stands for one run and owns `watch` (steps to
verdicts and episodes), `planning` (shifts to approved plans) and `active` (approved plans to switches);
`orders` turns people's commands into desired state, `proposal` checks the plans that they bring, `what_ifs` has
their questions answered, `publisher` keeps the broker's copy of the desired state, `queue` sends tasks to the
workers, `lease` keeps a second controller out. `context` is what all of them work with.
"""
