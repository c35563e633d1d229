"""What the specifications demand of a server, item by item, in our own words.

An item has a name: document, section, and a word for the point. Tests say which they prove with
``@covers("RFC 8166 3.3.1 never-zero")`` (:mod:`tests.rfc.plugin`). An item that no test can prove says why.

Levels: M for MUST and MUST NOT, S for SHOULD and SHOULD NOT, O for what is left open.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """One demand."""

    name: str
    level: str
    text: str
    explanation: str = ""
    """Why no test proves it, if none does."""

    @property
    def document(self) -> str:
        """Such as ``RFC 8166``."""
        return self.name.rpartition(" ")[0].rpartition(" ")[0]

    @property
    def section(self) -> str:
        """Such as ``3.3.1``, or a title where the document numbers none."""
        return self.name.split()[-2].replace("-", " ")


EXPLAINED = {
    "RFC 8166 2.3.2 reliable-connection": "There is no other provider: iWARP runs over TCP, devices are asked for RC"
    " queue pairs.",
}
"""What no test shows, and why."""


def _items(document: str, rows: str) -> list[Item]:
    """Rows of ``section word | level | text``."""
    items = []
    for row in rows.strip().splitlines():
        section, level, text = (part.strip() for part in row.split("|"))
        name = f"{document} {section}"
        items.append(Item(name, level, text, EXPLAINED.get(name, "")))
    return items


RFC_8166 = _items(
    "RFC 8166",
    """
    2.3.2 reliable-connection | M | Only a reliable connection that delivers in order carries RPC-over-RDMA.
    2.3.2 order | M | Results are placed before the Send that reports them; after it, nothing is.
    3.2 one-send | M | A message is exactly one Send: a header and, unless all is in chunks, the RPC message.
    3.3.1 grant | M | Every reply and error grants credits, never more than Receives are there for.
    3.3.1 never-zero | M | Zero credits are never granted.
    3.3.1 repost-first | M | The Receive behind a credit is posted before the reply that grants it is sent.
    3.3.1 requests-ignored | O | What the requester asks for does not bind the responder.
    3.3.1 overrun | O | A requester that sends more than it was granted harms itself only.
    3.3.2 receive-size | M | Each Receive takes a message of the call threshold.
    3.3.2 send-size | M | No message exceeds the reply threshold.
    3.3.3 start | M | Before anything is agreed on, one credit and 1024 octets are taken for granted.
    3.4.2 only-eligible | M | Nothing but what the upper-layer binding makes eligible is placed directly.
    3.4.5 same-position | M | Read segments of the same position are one chunk, in list order.
    3.4.5 position | M | A Read chunk belongs at its position in the unreduced stream, a multiple of four.
    3.4.5.1 reads-first | M | A call is executed when all its Read chunks have arrived.
    3.4.5.2 roundup | M | Round-up octets of a Read chunk may be there or not, and mean nothing.
    3.4.6 segments-in-order | M | Segments of a Write chunk are filled one after the other, and say what was written.
    3.4.6 echo | M | Write list and Reply chunk come back with the same chunks, segments, handles and offsets.
    3.4.6.2 no-roundup | M | No round-up octets are written to a Write chunk, nor stay in the stream.
    3.4.4.1 length-stays | M | The length word of a reduced item stays in the stream.
    3.5.3 placement | M | A reduced reply that fits goes inline; else into the Reply chunk; else the call gets an error.
    3.5.3 long-call-inline | M | A Long Call has no inline stream: a Position Zero Read chunk beside one is an error.
    4.2.1 xid | M | The header's XID is the RPC message's; a call where they differ gets an error.
    4.2.2 version | M | A version that is not served gets ERR_VERS.
    4.2.3 credits | M | The credit value of a reply is a grant, whatever the call asked for.
    4.2.4 nomsg | M | RDMA_NOMSG conveys everything in chunks; a call needs a Position Zero Read chunk.
    4.2.4 error-unanswered | M | RDMA_ERROR is never answered.
    4.3.1 reply-read-list | M | A reply's Read list is empty.
    4.3.1 any-order | S | Read chunks are taken in any order of positions.
    4.3.2 long-call-and-read-chunk | M | A Long Call may have further Read chunks (RFC 8267 section 6.4.2 demands one).
    4.3.2.1 pairing | M | The n-th Write chunk is for the n-th eligible result.
    4.3.2.2 unused | M | An unused Write chunk comes back with all lengths zero.
    4.3.2.3 empty | M | An empty Write chunk asks for its result inline, and comes back empty.
    4.3.3 reply-chunk-unused | O | A Reply chunk that is not needed comes back with all lengths zero.
    4.5 too-short | M | A message below 28 octets is discarded.
    4.5 any-octets | M | Whatever comes, answers are well formed and belong to a call, and nobody else is harmed.
    4.5 error-fields | M | An error has the XID and the version of what it answers.
    4.5.1 range | M | ERR_VERS says the lowest and the highest version served.
    4.5.2 malformed | M | A header that cannot be parsed, or an unknown procedure, gets ERR_CHUNK; nothing is executed.
    4.5.2 garbage-arguments | S | Chunks that fit no argument get GARBAGE_ARGS.
    4.5.3 no-room | M | A reply that fits nowhere gets ERR_CHUNK, and nothing is written.
    4.5.3 refused-memory | S | A call whose memory was refused gets an error when it comes again.
    4.5.4 lost-reply | M | Where neither reply nor error can be sent, the connection is closed.
    4.6.1 msgp | S | RDMA_MSGP is not sent, and answered with ERR_CHUNK.
    4.6.2 done | M | RDMA_DONE is not sent, and discarded.
    8.1 own-memory | S | The responder's memory is not open to its peers.
    8.1.4 bounds | M | Sizes and counts from the wire are bounded before anything is allocated.
    8.2.2 gss-not-reduced | M | Nothing of a message that RPCSEC_GSS protects is placed directly.
    9 netids | M | The netids are rdma and rdma6, the port is 20049, addresses are those of the IP family.
    """,
)

RFC_8167 = _items(
    "RFC 8167",
    """
    2.4 xid-spaces | M | XIDs of the two directions are unrelated, though they be the same number.
    4.1 credits-apart | M | Credits of the two directions are accounted apart.
    4.1 ambiguous | M | A credit value whose direction is not certain is ignored.
    4.1 first-call | M | One backward call is outstanding until a reply grants more.
    4.2 thresholds | M | The thresholds hold for backward messages too.
    4.3.2 receives | M | Replies to backward calls have Receives that no forward grant counts on.
    5.1 version | M | Backward calls have the version of the connection's forward calls.
    5.1 call-fields | M | A backward call has its RPC message's XID and the credits asked for in its header.
    5.2 reply-fields | M | A backward reply is one whose header and RPC message both have the call's XID.
    5.3 chunks | O | Backward calls and replies may use chunks as forward ones do.
    5.3 short-otherwise | M | A peer that takes no chunks gets short messages only.
    5.3 err-chunk | M | A peer that takes no chunks answers with ERR_CHUNK, which ends the call.
    5.4 carried-over | S | When the connection is lost, a backward call is sent again on another one.
    5.4 timeout | O | A backward call may time out.
    6 only-when-ready | M | Nothing is sent backward before the peer has said that it is prepared.
    """,
)

RFC_8267 = _items(
    "RFC 8267",
    """
    3 nfs3-eligible | M | NFSv3: WRITE's data, SYMLINK's target, READ's data, READLINK's target, and nothing else.
    4 nfs4-eligible | M | NFSv4: the same four, and nothing else; READ_PLUS is not among them.
    3.1 replay | S | A call that got an error after its execution may come again, with another XID.
    5 mount-over-tcp | M | MOUNT is not served over RDMA.
    6.3 any-port | S | The source port means nothing.
    6.4.1 must-use-write-chunk | M | A result goes into its Write chunk though it would fit inline.
    6.4.2 read-chunks | M | At least a Position Zero Read chunk and one other are taken, sixteen segments each.
    6.4.2 write-chunks | M | At least one Write chunk and a Reply chunk are taken, sixteen segments each.
    6.5.2 callbacks | M | NFSv4.1 callbacks come on the client's connection; short unless it takes Long Calls.
    6.6 sessions | M | A session may have connections of several transports.
    """,
)

RFC_8797 = _items(
    "RFC 8797",
    """
    4 format | M | Eight octets: identifier, version 1, flags, send size, receive size.
    4 reserved | M | Reserved flags are sent as zero and ignored when received.
    4.1 both-r | M | Send with Invalidate needs the R bit of both sides, and a handle of that very call.
    4.1 either-clear | M | Without both, it is a plain Send.
    4.2 sizes | M | Each direction's threshold is the smaller of one side's send size and the other's receive size.
    5.1 per-connection | M | Settings hold for one connection.
    5.1 absent | M | A peer without private data has 1024 octets and no R bit.
    5.2 any-offset | M | The identifier is looked for at every offset.
    5.2 checks | S | Version and extent are checked; anything else is as if absent.
    """,
)

DRAFT_02 = _items(
    "draft-cel-nfsv4-rpcrdma-version-two-02",
    """
    Default-Values receive-4096 | M | Every receiver takes 4096 octets; more may be agreed on by other means.
    Default-Values send-4096 | M | Without such means, no sender sends more.
    Negotiation first-message | M | Until the first reply, 1024 octets and one message at a time.
    Negotiation supported | M | A responder with version Two answers in it, with the same XID.
    Negotiation unsupported | M | One without answers ERR_VERS with its range, and serves what comes then.
    Negotiation settled | M | The version agreed on is the connection's for the rest of its life.
    Negotiation threshold-change | M | The change of the threshold costs no connection.
    Negotiation version-of-the-call | M | A reply has the version of its call.
    XDR header | M | Headers have the fields and values of the draft's XDR.
    Presence-Of-Payload msg | M | RDMA2_MSG has a payload stream behind it.
    Presence-Of-Payload error | M | RDMA2_ERROR has none.
    Presence-Of-Payload optional | O | RDMA2_OPTIONAL may have all, a part or nothing of one.
    Message-Direction backward | M | The backward direction is always there.
    Message-Direction msg | M | rdma_direction is the RPC message's direction.
    Message-Direction error | M | An error goes from Responder to Requester.
    Message-Direction optional | M | Without an RPC message, a Responder's option has direction REPLY.
    Message-Direction credits | M | XID and credits are those of the message's direction.
    Remote-Invalidation echo | M | The reply has the call's rdma_inv_handle.
    Remote-Invalidation zero | M | Zero forbids Send with Invalidate.
    Remote-Invalidation named | S | Another value asks for it, with that handle.
    Remote-Invalidation no-other | M | No other handle is invalidated.
    Remote-Invalidation backward | O | A backward call names a handle of ours, which the client may invalidate.
    Transport-Errors fields | M | XID and version are those of what the error answers.
    Transport-Errors vers | M | RDMA2_ERR_VERS is version One's ERR_VERS.
    Transport-Errors inval-proc | M | A known version with an unknown procedure gets RDMA2_ERR_INVAL_PROC.
    Transport-Errors bad-xdr | M | A header that cannot be parsed gets RDMA2_ERR_BAD_XDR, before any processing.
    Transport-Errors cant-reply | M | Too small Write or Reply chunks get RDMA2_ERR_CANT_REPLY.
    Transport-Errors processed | M | rdma_processed says whether the shortage was found after the processing.
    Transport-Errors segment | M | rdma_segment_index counts from one; zero names none.
    Transport-Errors needed | M | rdma_length_needed is what that segment needs.
    Transport-Errors retry | O | The requester may send the same XID again with larger resources.
    Transport-Errors inval-option | M | An unknown rdma_opttype gets RDMA2_ERR_INVAL_OPTION, with the same XID.
    """,
)

RFC_5531 = _items(
    "RFC 5531",
    """
    9 xid | M | A reply has the XID of its call.
    9 rpc-mismatch | M | Another version of RPC than 2 is denied with RPC_MISMATCH and the range 2 to 2.
    9 prog-unavail | M | A program that is not there gets PROG_UNAVAIL.
    9 prog-mismatch | M | A version that is not there gets PROG_MISMATCH, with a range that it is not in.
    9 proc-unavail | M | A procedure that is not there gets PROC_UNAVAIL.
    9 garbage-args | M | Arguments that cannot be decoded get GARBAGE_ARGS.
    9 auth-error | M | A credential of an unknown flavor is denied with AUTH_ERROR.
    9 any-octets | M | Whatever comes, a reply is one and belongs to a call, and nobody else is harmed.
    11 fragments | M | A record may come in any number of fragments.
    """,
)

RFC_1813 = _items(
    "RFC 1813",
    """
    3.3.0 null | M | NULL takes nothing, returns nothing, and needs no credential.
    2.6 bad-handle | M | A handle that is none gets NFS3ERR_BADHANDLE or NFS3ERR_STALE.
    3.3.2 guard | M | SETATTR with another ctime as its guard gets NFS3ERR_NOT_SYNC, and changes nothing.
    3.3.3 noent | M | LOOKUP of a name that is not there gets NFS3ERR_NOENT.
    3.3.6 eof | M | READ behind the end returns nothing, and eof.
    3.3.7 stable | M | WRITE with FILE_SYNC is committed as FILE_SYNC.
    3.3.8 exclusive | M | CREATE EXCLUSIVE again with its verifier succeeds; with another one it gets NFS3ERR_EXIST.
    3.3.13 notempty | M | RMDIR of a directory that is not empty fails.
    3.3.16 cookies | M | READDIR goes on at a cookie, and each name comes once.
    3.3.21 verifier | M | COMMIT returns the verifier of WRITE, as long as the server has not restarted.
    """,
)

RFC_8881 = _items(
    "RFC 8881",
    """
    16.2.3 minor-version | M | A minor version that is not there gets NFS4ERR_MINOR_VERS_MISMATCH, without results.
    2.10.6.1 replay | M | A request again with its slot and sequence ID gets the cached reply.
    2.10.6.1 misordered | M | Another sequence ID than the next gets NFS4ERR_SEQ_MISORDERED.
    15.1.11.1 bad-session | M | SEQUENCE in no session gets NFS4ERR_BADSESSION.
    15.1.11.2 bad-slot | M | A slot that is not in the table gets NFS4ERR_BADSLOT.
    2.10.2 not-in-session | M | An operation that needs a session and has none gets NFS4ERR_OP_NOT_IN_SESSION.
    18.46.3 sequence-pos | M | SEQUENCE behind another operation gets NFS4ERR_SEQUENCE_POS.
    20.9.3 sequence-first | M | A callback begins with CB_SEQUENCE, in the session that has its connection.
    10.4 recall | M | A delegation is recalled before a change in its way is made, and the change waits for its return.
    15.1.3.4 illegal | M | An operation that there is not gets NFS4ERR_OP_ILLEGAL as operation OP_ILLEGAL.
    """,
)

BASICS = {item.name: item for item in (*RFC_5531, *RFC_1813, *RFC_8881)}
"""What any NFS client relies on: a choice. Tests of this project show more of it, by other names."""
ITEMS = {item.name: item for item in (*RFC_8166, *RFC_8167, *RFC_8267, *RFC_8797, *DRAFT_02)}
