"""How bytes become messages: pure decoders that several edges share. They own no protocol and no transport."""
