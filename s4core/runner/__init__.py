"""What a customer launches: the entitlement gate, the health port and the supervised training.

A map of the package, in the order of a start:

- `cli`                the commands ``s4-runner serve`` and ``s4-runner exec -- command``
- `exits`              what each exit code means, and the errors that carry one
- `settings`           the customer's settings, from the environment
- `image`              the product's own settings, baked into the image, never the customer's
- `entitlement`        one check, three modes, fail closed; the answer kept for one boot
- `register_usage`     the modes: a signed answer of RegisterUsage,
- `meter_usage`        an accepted hourly record of MeterUsage,
- `instance_identity`  or the product codes in the signed identity document (`signed_document`)
- `metering_api`       the two calls, `sigv4` signs them, `exchange` carries them
- `imds`               what EC2 says about this instance, by IMDSv2 only
- `gates`              the GPU self-test and the store check
- `health`             TCP 8080: ``/healthz``, ``/readyz``, ``/metrics`` (`exposition`)
- `metrics`, `intake`  how a training tells the runner about its saves: one end, the other end
- `supervise`          the training's process: signals, restarts (`processes`: who handles what)
- `interruption`       spot and rebalance notices
- `notify`             systemd is told: ready, alive, stopping
- `signals`            as something to wait for
- `service`            all of the above, in order

Nothing here imports torch: the self-test runs in a process of its own.
"""
