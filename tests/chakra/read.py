"""Reads Chakra traces with Google's protobuf and checks what a simulator relies on.

Usage: read.py STEP_MS PREFIX: the files PREFIX.0.et, PREFIX.1.et, ... of one export; STEP_MS is the step that
a replay must come to.

The descriptors are built here from Chakra's field numbers, so nothing is shared with the writer.
"""

import sys
from collections import defaultdict
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

F = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "double": F.TYPE_DOUBLE, "float": F.TYPE_FLOAT, "int32": F.TYPE_INT32, "int64": F.TYPE_INT64,
    "uint32": F.TYPE_UINT32, "uint64": F.TYPE_UINT64, "bool": F.TYPE_BOOL, "string": F.TYPE_STRING,
}
MESSAGES = {
    "AttributeProto": ["1 string name", "2 string doc_string", "3 double double_val *", "5 float float_val *",
                       "7 int32 int32_val *", "9 int64 int64_val *", "11 uint32 uint32_val *",
                       "13 uint64 uint64_val *", "27 bool bool_val *", "29 string string_val *"],
    "GlobalMetadata": ["1 string version", "2 AttributeProto attr []"],
    "IOInfo": ["1 string values", "2 string shapes", "3 string types"],
    "Node": ["1 uint64 id", "2 string name", "3 int32 type", "4 uint64 ctrl_deps []", "5 uint64 data_deps []",
             "6 uint64 start_time_micros", "7 uint64 duration_micros", "8 IOInfo inputs", "9 IOInfo outputs",
             "10 AttributeProto attr []"],
}
COMP, SEND, RECV, COLL = 4, 5, 6, 7


def classes():
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="ChakraProtoMsg", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields:
            number, kind, field, *mark = text.split()
            f = message.field.add(name=field, number=int(number))
            f.label = F.LABEL_REPEATED if mark == ["[]"] else F.LABEL_OPTIONAL
            if kind in SCALARS:
                f.type = SCALARS[kind]
            else:
                f.type, f.type_name = F.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            if mark == ["*"]:
                if not message.oneof_decl:
                    message.oneof_decl.add(name="value")
                f.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{n}")) for n in MESSAGES}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def messages(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        size, at = varint(data, at)
        assert at + size <= len(data), f"{path} ends within a message"
        yield data[at:at + size]
        at += size


def parse(kind, data):
    message = kind()
    message.ParseFromString(data)
    # Fields that the schema does not have would be dropped here.
    assert len(message.SerializeToString()) == len(data), "a field that Chakra does not know"
    return message


class Node:
    def __init__(self, message):
        self.id, self.name, self.kind = message.id, message.name, message.type
        self.deps = list(message.ctrl_deps) + list(message.data_deps)
        self.micros = message.duration_micros
        self.attr, self.types = {}, {}
        for a in message.attr:
            which = a.WhichOneof("value")
            assert which and a.name not in self.attr, f"{self.name}: attribute {a.name}"
            self.attr[a.name], self.types[a.name] = getattr(a, which), which
        self.key = tuple(self.attr.get(k) for k in ("comm_src", "comm_dst", "comm_tag"))


# The types that Chakra's feeder reads.
TYPES = {"is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val", "comm_type": "int64_val",
         "comm_size": "int64_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val",
         "comm_priority": "int32_val"}
NEEDS = {COMP: ["num_ops", "tensor_size"], COLL: ["comm_type", "comm_size"],
         SEND: ["comm_src", "comm_dst", "comm_tag", "comm_size"], RECV: ["comm_src", "comm_dst", "comm_tag", "comm_size"]}


def check(rank, nodes):
    """Unique ids, known dependencies, no cycle (Kahn), attributes as readers want them."""
    ids = {n.id for n in nodes}
    assert len(ids) == len(nodes), f"rank {rank}: an id is there twice"
    waits, after = {}, defaultdict(list)
    for n in nodes:
        assert set(n.deps) <= ids, f"rank {rank}: {n.name} waits for what is not there"
        assert len(set(n.deps)) == len(n.deps)
        waits[n.id] = len(n.deps)
        for d in n.deps:
            after[d].append(n.id)
        for name in NEEDS[n.kind] + ["is_cpu_op"]:
            assert n.types.get(name) == TYPES[name], f"rank {rank}: {n.name}: {name} is {n.types.get(name)}"
        assert n.micros > 0
        if n.kind != COMP:
            assert not n.attr["is_cpu_op"] and n.attr["comm_size"] > 0
    free, done = [i for i in waits if waits[i] == 0], 0
    while free:
        done += 1
        for i in after[free.pop()]:
            waits[i] -= 1
            if waits[i] == 0:
                free.append(i)
    assert done == len(nodes), f"rank {rank}: dependencies form a cycle"


def pairs(ranks):
    sides = {SEND: {}, RECV: {}}
    for rank, nodes in enumerate(ranks):
        for n in nodes:
            if n.kind in sides:
                assert rank == n.key[0 if n.kind == SEND else 1] and n.key[0] != n.key[1]
                assert n.key not in sides[n.kind], f"{n.name}: its tag is there twice"
                sides[n.kind][n.key] = n.attr["comm_size"]
    assert sides[SEND] == sides[RECV], "a message has one side only, or two sizes"
    return len(sides[SEND])


def replay(ranks):
    """Ends of all nodes if nothing but dependencies makes them wait; a receive ends with its send."""
    end, sent = [{} for _ in ranks], {}
    left = [list(nodes) for nodes in ranks]
    while any(left):
        before = sum(map(len, left))
        for rank, nodes in enumerate(left):
            rest = []
            for n in nodes:
                if any(d not in end[rank] for d in n.deps) or (n.kind == RECV and n.key not in sent):
                    rest.append(n)
                    continue
                at = max((end[rank][d] for d in n.deps), default=0.0)
                if n.kind == RECV:
                    at = max(at, sent[n.key])
                else:
                    at += n.micros if n.kind == SEND else n.attr["duration_nanos"] / 1e3
                if n.kind == SEND:
                    sent[n.key] = at
                end[rank][n.id] = at
            left[rank] = rest
        assert sum(map(len, left)) < before, "ranks wait for each other for ever"
    return end


def main():
    step, prefix = float(sys.argv[1]), Path(sys.argv[2])
    kinds = classes()
    ranks, batches = [], 0
    while (path := prefix.with_name(f"{prefix.name}.{len(ranks)}.et")).exists():
        first, *rest = messages(path)
        metadata = parse(kinds["GlobalMetadata"], first)
        assert metadata.version == "0.0.4"
        told = {a.name: getattr(a, a.WhichOneof("value")) for a in metadata.attr}
        assert told["rank"] == len(ranks)
        batches = told["steps"]
        ranks.append([Node(parse(kinds["Node"], m)) for m in rest])
        check(len(ranks) - 1, ranks[-1])
    assert ranks and told["ranks"] == len(ranks), "a file for each rank"
    count = pairs(ranks)
    end = replay(ranks)
    last = [max(end[0][n.id] for n in ranks[0] if n.attr["batch"] == b) / 1e3 for b in range(batches)]
    period = (last[-1] - last[0]) / (batches - 1)
    nodes = sum(map(len, ranks))
    print(f"{prefix.name}: {len(ranks)} ranks, {nodes} nodes, {count} messages; replayed step {period:.3f} ms, "
          f"planned {step:.3f} ms")
    # Without the engines' limits a replay may be shorter, never longer; all of `serial` is one chain.
    assert period <= step * 1.02, "the trace orders more than the schedule"
    if told["strategy"] == "serial":
        assert period >= step * 0.98, "the trace orders less than the schedule"


main()
