"""ONC RPC (RFC 5531): messages, authentication, dispatch, replay cache."""
