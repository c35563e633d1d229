"""The server under fire: many clients, whose histories are checked against a model, while a seeded schedule kills the
server, cuts its power, stalls and fills its disk, drops and delays its connections, reloads it and evicts its clients.

    python -m tests.soak --seconds 3600 --seed 1

``histories`` is the model and its check; ``clients`` work and record; ``faults`` is the schedule; ``server`` is the
server and its disk; ``churn`` makes connections and drops them; ``report`` says what was found (docs/soak.md).
"""
