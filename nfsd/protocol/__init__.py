"""The protocols' declarations, with the RFCs' names; no behaviour. Imports :mod:`rpcrdma.xdr` and the RPC declarations."""
