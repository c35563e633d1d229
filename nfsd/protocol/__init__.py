"""The protocols' declarations, with the RFCs' names and no behaviour; imports XDR and the RPC declarations."""
