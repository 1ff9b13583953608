"""The command ``trunkline``: one module for each verb, loaded when it is used.

Read ``main`` (the verbs), ``client`` (how they reach the exchange), ``terminal`` (what a person is shown), then
any verb.
"""
