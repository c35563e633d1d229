-- Wireshark's dissector of RPC-over-RDMA version Two (draft-cel-nfsv4-rpcrdma-version-two-02) over iWARP, which is how
-- `rdma-nfsd capture` writes what any provider carries. Wireshark itself knows version One only.
--
--     tshark -X lua_script:$(rdma-nfsd capture --dissector) -2 -r trouble.pcapng
--
-- (Wireshark 4.4 and later run no scripts for root: do that as another user), or, for good: copy it to the personal Lua plugins (Wireshark: Help > About > Folders).
--
-- What went through chunks is put together: a call with Read chunks is dissected where its last octets arrive, a reply
-- with Write chunks or a Reply chunk where its header is. Everything is worked out when a packet is seen first, in
-- order, and kept by packet: Wireshark asks for packets again, in any order.

local proto = Proto("rpcordma2", "RPC over RDMA version Two")
local framing = Proto("rpcordma2_framing", "RPC over RDMA version Two: view of TCP segments")

local PROCEDURES = {[0] = "RDMA2_MSG", [1] = "RDMA2_NOMSG", [4] = "RDMA2_ERROR", [5] = "RDMA2_OPTIONAL"}
local DIRECTIONS = {[0] = "CALL", [1] = "REPLY"}
local ERRORS = {
    [1] = "RDMA2_ERR_VERS", [2] = "RDMA2_ERR_BAD_XDR", [3] = "RDMA2_ERR_CANT_REPLY", [4] = "RDMA2_ERR_INVAL_PROC",
    [5] = "RDMA2_ERR_INVAL_OPTION",
}
local MSG, NOMSG, ERROR, OPTIONAL = 0, 1, 4, 5
local CALL, REPLY = 0, 1
local WRITE, READ_REQUEST, READ_RESPONSE = 0, 1, 2 -- RFC 5040 section 4.2

local FIELDS = {
    xid = ProtoField.uint32("rpcordma2.xid", "XID", base.HEX),
    version = ProtoField.uint32("rpcordma2.version", "Version"),
    credit = ProtoField.uint32("rpcordma2.credit", "Credits"),
    proc = ProtoField.uint32("rpcordma2.proc", "Procedure", base.DEC, PROCEDURES),
    direction = ProtoField.uint32("rpcordma2.direction", "Direction", base.DEC, DIRECTIONS),
    inv_handle = ProtoField.uint32("rpcordma2.inv_handle", "Handle to invalidate", base.HEX),
    read = ProtoField.none("rpcordma2.read", "Read segment"),
    write = ProtoField.none("rpcordma2.write", "Write chunk"),
    reply = ProtoField.none("rpcordma2.reply", "Reply chunk"),
    position = ProtoField.uint32("rpcordma2.position", "Position"),
    handle = ProtoField.uint32("rpcordma2.handle", "Handle", base.HEX),
    length = ProtoField.uint32("rpcordma2.length", "Length"),
    offset = ProtoField.uint64("rpcordma2.offset", "Offset", base.HEX),
    error = ProtoField.uint32("rpcordma2.error", "Error", base.DEC, ERRORS),
    low = ProtoField.uint32("rpcordma2.versions.low", "Lowest version"),
    high = ProtoField.uint32("rpcordma2.versions.high", "Highest version"),
    processed = ProtoField.uint32("rpcordma2.processed", "Processed", base.DEC, {[0] = "no", [1] = "yes"}),
    segment_index = ProtoField.uint32("rpcordma2.segment_index", "Segment that is too small, from 1"),
    needed = ProtoField.uint32("rpcordma2.length_needed", "Octets needed there"),
    opttype = ProtoField.uint32("rpcordma2.opttype", "Option"),
    optinfo = ProtoField.bytes("rpcordma2.optinfo", "Option's information"),
    whole_in = ProtoField.framenum("rpcordma2.whole_in", "RPC message is whole in", base.NONE, frametype.RESPONSE),
    header_in = ProtoField.framenum("rpcordma2.header_in", "Transport header is in", base.NONE, frametype.REQUEST),
    whole = ProtoField.uint32("rpcordma2.reassembled.length", "Octets of the RPC message with its chunks"),
}
proto.fields = FIELDS
local malformed = ProtoExpert.new("rpcordma2.malformed", "Malformed header", expert.group.MALFORMED, expert.severity.ERROR)
local incomplete = ProtoExpert.new("rpcordma2.incomplete", "Not put together", expert.group.REASSEMBLE, expert.severity.NOTE)
proto.experts = {malformed, incomplete}

local rpc, data, tcp = Dissector.get("rpc"), Dissector.get("data"), Dissector.get("tcp")

-- Octets -------------------------------------------------------------------------------------------------------------

local function word(octets, at)
    local a, b, c, d = octets:byte(at + 1, at + 4)
    return d and ((a * 256 + b) * 256 + c) * 256 + d
end

local function words(...)
    local octets = {}
    for index, value in ipairs({...}) do
        octets[index] = string.char(
            math.floor(value / 16777216) % 256, math.floor(value / 65536) % 256, math.floor(value / 256) % 256, value % 256)
    end
    return table.concat(octets)
end

-- An offset in memory has 64 bits, more than Lua's numbers hold exactly everywhere; differences are small.
local function offset_at(octets, at)
    return {high = word(octets, at), low = word(octets, at + 4)}
end

local function beyond(offset, from)
    return (offset.high - from.high) * 4294967296 + (offset.low - from.low)
end

-- The transport header -----------------------------------------------------------------------------------------------

local Header = {}
Header.__index = Header

-- Words are taken one by one; each leaves what it was, and where, for the tree. A header that ends early is malformed.
function Header:take(name)
    local value = word(self.octets, self.at)
    if not value then
        error({reason = "it ends before " .. name})
    end
    self.at = self.at + 4
    return value
end

function Header:more(name)
    local value = self:take(name)
    if value > 1 then
        error({reason = "neither an end nor an entry of " .. name})
    end
    return value == 1
end

function Header:segment()
    local one = {at = self.at, handle = self:take("a handle"), length = self:take("a length")}
    one.offset = offset_at(self.octets, self.at)
    self:take("an offset")
    self:take("an offset")
    return one
end

function Header:chunk()
    local chunk = {at = self.at}
    for _ = 1, self:take("a count of segments") do
        chunk[#chunk + 1] = self:segment()
    end
    chunk.size = self.at - chunk.at
    return chunk
end

function Header:lists()
    self.direction, self.inv_handle = self:take("rdma_direction"), self:take("rdma_inv_handle")
    if self.direction > REPLY then
        error({reason = "direction " .. self.direction})
    end
    while self:more("the Read list") do
        local at, position = self.at, self:take("a position")
        local one = self:segment()
        one.at, one.position = at, position
        table.insert(self.reads, one)
    end
    while self:more("the Write list") do
        table.insert(self.writes, self:chunk())
    end
    if self:more("the Reply chunk") then
        self.reply = self:chunk()
    end
end

function Header:error_body()
    self.direction = REPLY
    self.error = self:take("rdma_err")
    if self.error == 1 then
        self:take("rdma_vers_low")
        self:take("rdma_vers_high")
    elseif self.error == 3 then
        self:take("rdma_processed")
        self:take("rdma_segment_index")
        self:take("rdma_length_needed")
    end
end

function Header:option_body()
    self.direction = self:take("rdma_optdir")
    self:take("rdma_opttype")
    self.info = self:take("rdma_optinfo")
    self.at = self.at + math.ceil(self.info / 4) * 4
    if self.at > #self.octets then
        error({reason = "it ends within rdma_optinfo"})
    end
end

-- The header at the start of these octets; nil if there is none.
local function parse(octets, known)
    local version, proc = word(octets, 4), word(octets, 12)
    if not proc or version < 2 or not known and (version ~= 2 or not PROCEDURES[proc]) then
        return nil
    end
    local header = setmetatable(
        {octets = octets, at = 16, xid = word(octets, 0), version = version, proc = proc, reads = {}, writes = {}}, Header)
    local good, why = pcall(function()
        if proc == ERROR then
            header:error_body()
        elseif version ~= 2 then
            return -- whatever it is, it will be refused
        elseif proc == OPTIONAL then
            header:option_body()
        elseif proc == MSG or proc == NOMSG then
            header:lists()
        end
    end)
    if not good then
        header.malformed = type(why) == "table" and why.reason or tostring(why)
        if not known then
            return nil
        end
    end
    return header
end

-- Memory: what RDMA Reads and Writes brought -------------------------------------------------------------------------

local connections, segments, results

local function end_of(address, port)
    return tostring(address) .. " " .. port
end

local function connection_of(pinfo)
    local source, destination = end_of(pinfo.src, pinfo.src_port), end_of(pinfo.dst, pinfo.dst_port)
    local key = source < destination and source .. " " .. destination or destination .. " " .. source
    local connection = connections[key]
    if not connection then
        local function side()
            -- memory: handle to pieces; requests: RDMA Reads that were asked of it; waiting: its calls with Read chunks
            return {memory = {}, requests = {}, waiting = {}, calls = {}}
        end
        connection = {[source] = side(), [destination] = side()}
        connections[key] = connection
    end
    return connection, connection[source], connection[destination]
end

local function put(side, handle, offset, octets, length)
    local pieces = side.memory[handle] or {}
    side.memory[handle] = pieces
    pieces[#pieces + 1] = {offset = offset, octets = octets, length = length}
end

-- The octets of a segment, or nil and why not. The latest that was brought counts.
local function gather(side, segment)
    local parts, have = {}, 0
    while have < segment.length do
        local found
        local pieces = side.memory[segment.handle] or {}
        for index = #pieces, 1, -1 do
            local from = have - beyond(pieces[index].offset, segment.offset)
            if from >= 0 and from < pieces[index].length then
                found = pieces[index]
                if #found.octets < found.length then
                    return nil, "the capture holds only the beginning of what went through chunks"
                end
                local part = found.octets:sub(from + 1, from + segment.length - have)
                parts[#parts + 1] = part
                have = have + #part
                break
            end
        end
        if not found then
            return nil, "not all of what went through chunks is in the capture"
        end
    end
    return table.concat(parts)
end

local function gather_chunk(side, chunk)
    local parts = {}
    for index, segment in ipairs(chunk) do
        local octets, why = gather(side, segment)
        if not octets then
            return nil, why
        end
        parts[index] = octets
    end
    return table.concat(parts)
end

local function insert(stream, at, octets)
    return stream:sub(1, at) .. octets .. string.rep("\0", -#octets % 4) .. stream:sub(at + 1)
end

-- RPC messages -------------------------------------------------------------------------------------------------------

-- A call: its Read chunks stand at positions of the whole message (RFC 8166 section 3.4.5); at position zero is the rest
-- of it, for what there is no room inline.
local function assemble_call(side, header, stream)
    local chunks, order = {}, {}
    for _, segment in ipairs(header.reads) do
        if not chunks[segment.position] then
            chunks[segment.position] = {}
            order[#order + 1] = segment.position
        end
        table.insert(chunks[segment.position], segment)
    end
    table.sort(order)
    for _, position in ipairs(order) do
        local octets, why = gather_chunk(side, chunks[position])
        if not octets then
            return nil, why
        end
        stream = position == 0 and octets or insert(stream, position, octets)
    end
    return stream
end

-- Where the result belongs whose data, of this length, went into a Write chunk (RFC 8267 sections 4.1 and 6.1): in a
-- reply of version 3 they are the end of READ's and READLINK's results; in COMPOUND those of the next such operation.
local function place(stream, length, call, from)
    if call and call.program == 100003 and call.version == 3 then
        return (call.procedure == 6 or call.procedure == 5) and word(stream, #stream - 4) == length and #stream
    end
    for at = from, #stream - 12, 4 do
        local operation, status, next_word = word(stream, at), word(stream, at + 4), word(stream, at + 8)
        if status == 0 and operation == 25 and next_word <= 1 and word(stream, at + 12) == length then
            return at + 16
        elseif status == 0 and operation == 27 and next_word == length then
            return at + 12
        end
    end
    return nil
end

local function assemble_reply(side, header, stream, call)
    if header.proc == NOMSG then
        local octets, why = gather_chunk(side, header.reply or {})
        if not octets then
            return nil, why
        end
        stream = octets
    end
    local from = 24 -- behind the fixed words of an accepted reply (RFC 5531 section 9)
    for _, chunk in ipairs(header.writes) do
        local octets, why = gather_chunk(side, chunk)
        if not octets then
            return nil, why
        end
        if #octets > 0 then
            local at = place(stream, #octets, call, from)
            if not at then
                return nil, "it is not known to which result the Write chunk belongs"
            end
            stream = insert(stream, at, octets)
            from = at + math.ceil(#octets / 4) * 4
        end
    end
    return stream
end

local function note_call(side, stream)
    if word(stream, 4) == 0 and word(stream, 20) then
        side.calls[word(stream, 0)] = {program = word(stream, 12), version = word(stream, 16), procedure = word(stream, 20)}
    end
end

local function forget(side, header)
    for _, segment in ipairs(header.reads) do
        side.memory[segment.handle] = nil
    end
    for _, chunk in ipairs(header.writes) do
        for _, segment in ipairs(chunk) do
            side.memory[segment.handle] = nil
        end
    end
    for _, segment in ipairs(header.reply or {}) do
        side.memory[segment.handle] = nil
    end
end

-- What a message is: its header, and its RPC message if that is whole here.
local function message(number, connection, sure, sender, receiver, octets, cut)
    local header = parse(octets, sure and connection.version_two)
    if not header then
        return nil
    end
    connection.version_two = true
    local result = {header = header}
    if header.malformed or header.proc > NOMSG or header.version ~= 2 then
        return result
    end
    local stream = octets:sub(header.at + 1)
    if header.direction == CALL then
        note_call(sender, stream)
        if #header.reads > 0 and not cut then
            table.insert(sender.waiting, {result = result, stream = stream, number = number})
        elseif header.proc == MSG then
            result.inline = true
        end
    elseif #header.writes == 0 and header.proc == MSG then
        result.inline = true
    elseif cut then
        result.why = "the capture holds only the beginning of the message"
    else
        result.whole, result.why = assemble_reply(receiver, header, stream, receiver.calls[header.xid])
        forget(receiver, header)
    end
    return result
end

-- Which RDMA Read this answers: it names where the data go, as the request did (RFC 5040 section 4.4). The latest that
-- did, since a sink may be used again when a Read is over, and answers may be missing.
local function requested(owner, rdmap)
    local stag, offset = word(rdmap.octets, rdmap.at + 2), offset_at(rdmap.octets, rdmap.at + 6)
    for index = #owner.requests, 1, -1 do
        local request = owner.requests[index]
        local have = beyond(offset, request.sink)
        if request.stag == stag and have >= 0 and have < request.length then
            return index, request, have
        end
    end
    return nil
end

local function read_response(number, owner, octets, length, rdmap)
    local index, request, have = requested(owner, rdmap)
    if not request then
        return {}
    end
    put(owner, request.handle, {high = request.offset.high, low = request.offset.low + have}, octets, length)
    if not rdmap.last then
        return {}
    end
    table.remove(owner.requests, index)
    for index, call in ipairs(owner.waiting) do
        local whole = assemble_call(owner, call.result.header, call.stream)
        if whole then
            table.remove(owner.waiting, index)
            note_call(owner, whole)
            forget(owner, call.result.header)
            call.result.whole_in = number
            return {whole = whole, header_in = call.number}
        end
    end
    return {}
end

-- iWARP --------------------------------------------------------------------------------------------------------------

-- The dissector of RDMAP gives Lua the payload alone. So its headers are looked up in the TCP segment, where the payload
-- is: behind the length of MPA's FPDU (RFC 5044), and DDP's header, tagged or untagged (RFC 5041).
local function rdmap_header(tvb)
    local segment = segments.current
    if not segment then
        return nil
    end
    local at = tvb:offset() - segment.offset
    for size, tagged in pairs({[14] = true, [18] = false}) do
        local start = at - size
        local length = start >= 4 and word(segment.octets, start - 4)
        local control, opcode = segment.octets:byte(start + 1, start + 2)
        if length and opcode and length % 65536 == size + tvb:reported_len() and (control >= 128) == tagged then
            return {opcode = opcode % 16, last = control % 128 >= 64, octets = segment.octets, at = start}
        end
    end
    return nil
end

-- An RDMA Read Request is all header, and its payload is empty: it ends where that begins.
local function read_request(tvb)
    local segment = segments.current
    local start = segment and tvb:offset() - segment.offset - 46 or 0
    if start >= 4 and word(segment.octets, start - 4) % 65536 == 46 and segment.octets:byte(start + 2) % 16 == READ_REQUEST then
        local octets = segment.octets
        return {
            stag = word(octets, start + 18), sink = offset_at(octets, start + 22), length = word(octets, start + 30),
            handle = word(octets, start + 34), offset = offset_at(octets, start + 38),
        }
    end
    return nil
end

local function work_out(tvb, pinfo)
    local connection, sender, receiver = connection_of(pinfo)
    local length, octets = tvb:reported_len(), tvb:len() > 0 and tvb:raw() or ""
    if length == 0 then
        local request = read_request(tvb)
        if request then
            table.insert(receiver.requests, request)
        end
        return {}
    end
    local rdmap = rdmap_header(tvb)
    if rdmap and rdmap.opcode == WRITE then
        local handle, offset = word(rdmap.octets, rdmap.at + 2), offset_at(rdmap.octets, rdmap.at + 6)
        put(receiver, handle, offset, octets, length)
        return {}
    elseif rdmap and rdmap.opcode == READ_RESPONSE then
        return read_response(pinfo.number, sender, octets, length, rdmap)
    end
    if #octets < 16 then
        return {}
    end
    -- Only what RDMAP calls a Send may be malformed: where the segment could not be read it may be anything.
    return message(pinfo.number, connection, rdmap ~= nil, sender, receiver, octets, #octets < length) or {}
end

-- The tree -----------------------------------------------------------------------------------------------------------

local function show_segment(tree, tvb, at)
    tree:add(FIELDS.handle, tvb(at, 4))
    tree:add(FIELDS.length, tvb(at + 4, 4))
    tree:add(FIELDS.offset, tvb(at + 8, 8))
end

local function show_chunk(tree, tvb, field, chunk)
    local item = tree:add(field, tvb(chunk.at, chunk.size))
    local total = 0
    for _, segment in ipairs(chunk) do
        total = total + segment.length
        show_segment(item, tvb, segment.at)
    end
    item:append_text(string.format(": %d octets in %d segments", total, #chunk))
end

local function show_body(tree, tvb, header)
    if header.proc == ERROR then
        tree:add(FIELDS.error, tvb(16, 4))
        if header.error == 1 then
            tree:add(FIELDS.low, tvb(20, 4))
            tree:add(FIELDS.high, tvb(24, 4))
        elseif header.error == 3 then
            tree:add(FIELDS.processed, tvb(20, 4))
            tree:add(FIELDS.segment_index, tvb(24, 4))
            tree:add(FIELDS.needed, tvb(28, 4))
        end
    elseif header.version == 2 and header.proc == OPTIONAL then
        tree:add(FIELDS.direction, tvb(16, 4))
        tree:add(FIELDS.opttype, tvb(20, 4))
        tree:add(FIELDS.optinfo, tvb(28, header.info))
    elseif header.version == 2 and header.proc <= NOMSG then
        tree:add(FIELDS.direction, tvb(16, 4))
        tree:add(FIELDS.inv_handle, tvb(20, 4))
        for _, segment in ipairs(header.reads) do
            local item = tree:add(FIELDS.read, tvb(segment.at, 20))
            item:append_text(string.format(": %d octets for position %d", segment.length, segment.position))
            item:add(FIELDS.position, tvb(segment.at, 4))
            show_segment(item, tvb, segment.at + 4)
        end
        for _, chunk in ipairs(header.writes) do
            show_chunk(tree, tvb, FIELDS.write, chunk)
        end
        if header.reply then
            show_chunk(tree, tvb, FIELDS.reply, header.reply)
        end
    end
end

local function show_header(tree, tvb, pinfo, result)
    local header = result.header
    local name = PROCEDURES[header.proc] or ("procedure " .. header.proc)
    if header.version ~= 2 then
        name = (header.proc == ERROR and "RDMA_ERROR" or "procedure " .. header.proc) .. ", version " .. header.version
    end
    local info = string.format("%s XID 0x%08x", name, header.xid)
    if header.error then
        info = info .. " " .. (ERRORS[header.error] or ("error " .. header.error))
    end
    pinfo.cols.protocol:set("RPCoRDMA2")
    pinfo.cols.info:set(info)
    local item = tree:add(proto, tvb(0, math.min(header.at, tvb:len())), "RPC over RDMA version Two: " .. info)
    item:add(FIELDS.xid, tvb(0, 4))
    item:add(FIELDS.version, tvb(4, 4))
    item:add(FIELDS.credit, tvb(8, 4))
    item:add(FIELDS.proc, tvb(12, 4))
    if header.malformed then
        item:add_proto_expert_info(malformed, "Malformed header: " .. header.malformed)
        return item
    end
    show_body(item, tvb, header)
    if result.whole_in then
        item:add(FIELDS.whole_in, result.whole_in):set_generated()
    end
    if result.why then
        item:add_proto_expert_info(incomplete, "Not put together: " .. result.why)
    end
    return item
end

-- Has one of Wireshark's dissectors show what it can. Of a packet that was cut Wireshark says so in the tree, and then
-- versions 4.4 and later raise an error here besides.
local function show_with(dissector, tvb, pinfo, tree)
    local whole, taken = pcall(dissector.call, dissector, tvb, pinfo, tree)
    return whole and taken or tvb:len()
end

local function show_whole(item, pinfo, tree, whole)
    item:add(FIELDS.whole, #whole):set_generated()
    show_with(rpc, ByteArray.new(whole, true):tvb("RPC message with its chunks"), pinfo, tree)
end

local function dissect(tvb, pinfo, tree)
    local key = pinfo.number .. " " .. tvb:offset()
    local result = results[key]
    if not result then
        result = work_out(tvb, pinfo)
        results[key] = result
    end
    if result.header then
        local item = show_header(tree, tvb, pinfo, result)
        if result.whole then
            show_whole(item, pinfo, tree, result.whole)
        elseif result.inline and result.header.at < tvb:len() then
            show_with(rpc, tvb(result.header.at):tvb(), pinfo, tree)
        end
        return true
    elseif result.whole then
        show_with(data, tvb, pinfo, tree)
        local item = tree:add(proto, tvb(0, 0), "RPC over RDMA version Two: RDMA Read completes an RPC call")
        item:add(FIELDS.header_in, result.header_in):set_generated()
        show_whole(item, pinfo, tree, result.whole)
        return true
    end
    return false
end

function proto.init()
    connections, segments, results = {}, {}, {}
end

function proto.dissector() end

function framing.dissector(tvb, pinfo, tree)
    segments.current = {octets = tvb:raw(), offset = tvb:offset()}
    return show_with(tcp, tvb, pinfo, tree)
end

proto:register_heuristic("iwarp_ddp_rdmap", dissect)
DissectorTable.get("ip.proto"):set(6, framing)
