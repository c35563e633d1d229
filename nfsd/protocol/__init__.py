"""NFS protocol declarations under the RFCs' names; no behaviour."""
