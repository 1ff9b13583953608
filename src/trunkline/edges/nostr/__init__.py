"""OpenAgents over Nostr: jobs that strangers ask for by signed events on relays, and our answers to them.

Who calls whom, by subject. ``edge`` makes all of it; on the right of ``>`` stands what is called::

    words       messages, lifecycle: what events say > events > keys > encryption; names: what we are called
    relays      client: all of them > session: one
    our relay   relay_process > relay, a process of its own > front > said_to_relay; relay_settings: what it is told
    selling     provider: jobs of strangers > offer, pace, till; announcing: what we say of ourselves > offer
    buying      jobs_agent > buyer > asking > discovery > provider_records; remote_tools: its tools
    one order   buyer > orders > results; order_record: its steps; lookups: how calls and money stand; order_calls
    money       money makes what follows; payments: the embedded wallet's steps; receipting: receipts of all payments
    accounts    wallet_service > nip47, payments, till
    being paid  till > embedded_rail > payments; till > nutzap_queue > nutzaps; till > ecash
    paying      order_calls, by a call > wallet_agent > till, nwc, ecash, wallet_tokens; when a job is over: settling
    ecash       ecash > cashu_rail: the steps at one mint > mint_client; purse_file: what is kept; later: when again
"""
