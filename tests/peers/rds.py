#!/usr/bin/python3
"""Exercises RDS sockets: runs on each of two hosts; each process checks the messages that it gets and prints a line of JSON.

The program does not know which RDS it uses: the kernel's, or that of the library that `polyverbs run` puts in its place.

Both hosts bind the same ports: that of `--port` for the messages that control the exercise, and the following ones for the
exercise itself. Where both are one host, the receiver has the ports from the tenth one on. One of the processes gets `--first`:
if there is no connection yet, its host requests one.
"""
import argparse
import ctypes
import errno
import json
import mmap
import random
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time

CANCEL_SENT_TO, GET_MR, FREE_MR, CONG_MONITOR = 1, 2, 3, 6
CMSG_RDMA_ARGS, CMSG_RDMA_DEST, CMSG_RDMA_MAP, CMSG_RDMA_STATUS, CMSG_CONG_UPDATE, CMSG_ATOMIC_FADD = 1, 2, 3, 4, 5, 6
READ_WRITE, USE_ONCE, NOTIFY_ME = 1, 8, 0x20
RDMA_STATUS = {0: "success", 1: "remote error", 2: "cancelled", 3: "dropped", 4: "other error"}
LARGEST = 1 << 20
SIZES = [0, 1, 2, 8, 100, 4095, 4096, 4097, 8191, 8192, 8193, 65535, 65536, 65537, LARGEST - 1, LARGEST]


class Failure(Exception):
    """A condition does not hold."""


def check(holds, what):
    if not holds:
        raise Failure(what)


def content(length):
    return random.Random(length).randbytes(length)


class Side:
    """This process, and the address of the other one."""

    def __init__(self, options):
        self.options = options
        ports = [options.port, options.port + 10 * (options.at == options.peer)]
        self.port, self.their_port = ports if options.role == "sends" else reversed(ports)
        self.sockets = [self.bound(index) for index in range(9)]
        self.control = self.sockets[0]
        # The killed incarnation before this one has met the other process already.
        if options.incarnation != 2:
            self.meet()

    def bound(self, index):
        opened = socket.socket(socket.AF_RDS, socket.SOCK_SEQPACKET, 0)
        opened.bind((self.options.at, self.port + index))
        return opened

    def socket(self, index, receive_room=4 * LARGEST, send_room=4 * LARGEST):
        """One of the sockets that are bound before the two meet: a message to an unbound port is lost."""
        opened = self.sockets[index]
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_room)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_room)
        return opened

    def there(self, index):
        return (self.options.peer, self.their_port + index)

    def meet(self):
        """The first process may start before the other, so it repeats its message."""
        if not self.options.first:
            self.hear("hello")
        self.tell("hello")
        while self.options.first and not self.hears_within(0.5, "hello"):
            self.tell("hello")

    def tell(self, word, **facts):
        self.control.sendto(json.dumps({"word": word, **facts}).encode(), self.there(0))

    def hear(self, wanted):
        while True:
            said, sender = self.control.recvfrom(65536)
            check(sender == self.there(0), f"a word of {sender}")
            facts = json.loads(said)
            if facts["word"] == wanted:
                return facts
            check(facts["word"] == "hello", f"{facts} instead of {wanted}")


    def hears_within(self, seconds, word):
        """This uses a time-out, because a socket is also reported as readable when a congestion map has arrived."""
        self.control.settimeout(seconds)
        try:
            return self.hear(word)
        except TimeoutError:
            return None
        finally:
            self.control.settimeout(None)


def succeeds(send):
    """Whether there was room; the refusal of a congested port is an error."""
    try:
        send()
        return True
    except BlockingIOError:
        return False


def is_refused(code, call):
    try:
        call()
    except OSError as error:
        return error.errno == code
    return False


# Messages of every size arrive whole, with their sender.


def sizes_sends(side):
    data = side.socket(1)
    for size in SIZES:
        data.sendto(content(size), side.there(1))
    too_long = is_refused(errno.EMSGSIZE, lambda: data.sendto(bytes(LARGEST + 1), side.there(1)))
    check(too_long, "a message of more than 1 MiB is taken")
    side.hear("done")


def sizes_receives(side):
    data = side.socket(1)
    for size in SIZES:
        received, sender = data.recvfrom(LARGEST + 1)
        check(sender == side.there(1), f"{size} bytes of {sender}")
        check(received == content(size), f"of {size} bytes, {len(received)} or others came")
    check(is_refused(errno.EAGAIN, lambda: data.recv(1, socket.MSG_DONTWAIT)), "something is left")
    side.tell("done")
    return {"sizes": len(SIZES), "largest": SIZES[-1]}


# A message that is longer than its buffer is truncated, which is reported; a peeked message stays.


def truncation_sends(side):
    data = side.socket(1)
    for size in (10000, 20000):
        data.sendto(content(size), side.there(1))
    side.hear("done")


def truncation_receives(side):
    data = side.socket(1)
    for flags in (socket.MSG_PEEK, socket.MSG_PEEK | socket.MSG_TRUNC, 0):
        room = bytearray(5000)
        length, _, said, _ = data.recvmsg_into([room], 0, flags)
        check(said & socket.MSG_TRUNC, "a message is cut and nothing says so")
        check(room == content(10000)[:5000], "what fits is something else")
        check(length == (10000 if flags & socket.MSG_TRUNC else 5000), f"{length} bytes of 10000 in 5000")
    check(data.recv(LARGEST) == content(20000), "what was cut off came with the next one")
    side.tell("done")


# Ten thousand messages from eight sockets to eight arrive in order for each pair.


def numbered(source, target, number):
    return struct.pack("!BBI", source, target, number) + bytes([number % 251]) * ((number * 7919 + 31 * source + target) % 9001)


def order_sends(side):
    sources = [side.socket(1 + index) for index in range(8)]
    choice, sent = random.Random(8), {}
    for _ in range(side.options.count or 10000):
        source, target = choice.randrange(8), choice.randrange(8)
        number = sent[source, target] = sent.get((source, target), -1) + 1
        sources[source].sendto(numbered(source, target, number), side.there(1 + target))
    side.hear("done")


def order_receives(side):
    targets = [side.socket(1 + index) for index in range(8)]
    expected, received = {}, 0
    while received != (side.options.count or 10000):
        for data in select.select(targets, [], [])[0]:
            try:
                message, sender = data.recvfrom(LARGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                # A congestion map has arrived.
                continue
            source, target = sender[1] - side.their_port - 1, targets.index(data)
            number = expected.get((source, target), 0)
            check(message == numbered(source, target, number), f"{message[:6].hex()}, not {number} of {source} to {target}")
            expected[source, target] = number + 1
            received += 1
    side.tell("done")
    return {"messages": received, "pairs": len(expected)}


# A host itself answers messages to its port 0.


def ping_sends(side):
    data = side.socket(1)
    times = []
    for _ in range(side.options.count or 100):
        began = time.perf_counter()
        data.sendto(b"", (side.options.peer, 0))
        answer, sender = data.recvfrom(16)
        times.append(time.perf_counter() - began)
        check((answer, sender) == (b"", (side.options.peer, 0)), f"{answer} of {sender}")
    side.tell("done")
    return {"pings": len(times), "median_us": round(statistics.median(times) * 1e6, 1)}


def ping_receives(side):
    side.hear("done")


# If a socket is not read, its senders are refused, others continue, and waiting senders are woken when it is read.


def congestion_sends(side):
    data, sent = side.socket(1), 0
    poll = select.poll()
    poll.register(data, select.POLLIN)
    message = bytes(4096)

    def send(flags=socket.MSG_DONTWAIT):
        nonlocal sent
        data.sendto(message, flags, side.there(1))
        sent += 1

    def is_congested():
        return is_refused(errno.ENOBUFS, send)

    for way in ("poll", "monitor", "blocking"):
        data.setsockopt(socket.SOL_RDS, CONG_MONITOR, way == "monitor")
        while not is_congested():
            check(sent < 10000, "nobody is refused")
        for _ in range(100):
            data.sendto(b"others go on", side.there(2))
        side.hear("others")
        check(is_congested(), "a socket that is not read is not congested any more")
        side.tell("read", messages=sent)
        if way == "blocking":
            send(0)
        while way != "blocking":
            check(poll.poll(20000), f"who waits for a congested port is not woken: {way}")
            if way == "monitor" and not sees_update(data, side.their_port + 1):
                continue
            if not is_congested():
                break
        side.tell("rest", messages=sent)
        side.hear("empty")
    return {"messages": sent}


def sees_update(data, port):
    try:
        received, control, _, _ = data.recvmsg(16, 256, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    check(not received, "a message came")
    updates = [struct.unpack("=Q", value)[0] for level, kind, value in control if kind == CMSG_CONG_UPDATE]
    check(updates, "a notification says nothing")
    return bool(updates[0] >> port % 64 & 1)


def congestion_receives(side):
    slow, quick = side.socket(1, receive_room=65536), side.socket(2)
    read = 0

    def read_up_to(messages):
        nonlocal read
        while read < messages:
            check(slow.recv(LARGEST) == bytes(4096), "another message came")
            read += 1

    for _ in ("poll", "monitor", "blocking"):
        for _ in range(100):
            check(quick.recv(100) == b"others go on", "another message came")
        side.tell("others")
        read_up_to(side.hear("read")["messages"])
        read_up_to(side.hear("rest")["messages"])
        side.tell("empty")
    return {"messages": read}


# A receiver is killed and started again: acknowledged messages do not arrive again, and messages to the new one arrive.
# The acknowledges are messages of the program.

HERE_AGAIN = 0xFFFFFFFF


def killed_receiver_sends(side):
    data, sent, end = side.socket(1), 0, None
    acknowledged = {1: [], 2: []}
    poll = select.poll()
    while end is None or end - 1 not in acknowledged[2][-1:]:
        # No more than the sockets have room for while no process reads.
        may_send = sent < end if end else sent < 64 + len(acknowledged[1])
        poll.register(data, select.POLLIN | (select.POLLOUT if may_send else 0))
        poll.poll()
        while (answer := received_now(data)) is not None:
            incarnation, number = struct.unpack("!BI", answer)
            if number == HERE_AGAIN:
                end = sent + 500
            else:
                acknowledged[incarnation].append(number)
        message = struct.pack("!I?", sent, sent + 1 == end).ljust(1000)
        if may_send and succeeds(lambda: data.sendto(message, socket.MSG_DONTWAIT, side.there(1))):
            sent += 1
    for numbers in acknowledged.values():
        check(all(a < b for a, b in zip(numbers, numbers[1:])), "out of order or twice")
    # The killed sender may not have sent the last numbers that it reported to the process that killed it.
    check(len(acknowledged[1]) >= 400, "the one that was killed had acknowledged less")
    check(acknowledged[2][-500:] == list(range(end - 500, end)), "of what was sent to the new one, something is missing")
    again = set(acknowledged[1]) & set(acknowledged[2])
    check(not again, f"{len(again)} came again that had been acknowledged, as {min(again, default=None)}")
    return {"sent": sent, "before": len(acknowledged[1]), "after": len(acknowledged[2])}


def received_now(data):
    try:
        return data.recv(LARGEST, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None


def killed_receiver_receives(side):
    data, incarnation, is_last = side.socket(1), side.options.incarnation, False
    if incarnation == 2:
        data.sendto(struct.pack("!BI", incarnation, HERE_AGAIN), side.there(1))
    while not is_last:
        number, is_last = struct.unpack("!I?", data.recv(LARGEST)[:5])
        print(number, flush=True)
        data.sendto(struct.pack("!BI", incarnation, number), side.there(1))


# A sender is killed and started again: a prefix of the first one's messages arrives, and all of the second one's, in order.


def killed_sender_sends(side):
    data, incarnation = side.socket(1), side.options.incarnation
    sent = acknowledged = 0
    while incarnation == 1 or acknowledged < 500:
        if sent < acknowledged + 64 and (incarnation == 1 or sent < 500):
            data.sendto(struct.pack("!BI", incarnation, sent).ljust(1000), side.there(1))
            sent += 1
            continue
        answer = data.recv(LARGEST)
        # The previous incarnation may still get an answer.
        if answer[0] == incarnation:
            check(answer == struct.pack("!BI", incarnation, acknowledged), f"{answer.hex()} instead of {acknowledged}")
            print(acknowledged, flush=True)
            acknowledged += 1


def killed_sender_receives(side):
    data = side.socket(1)
    received = {1: 0, 2: 0}
    while received[2] < 500:
        message = data.recv(LARGEST)
        incarnation, number = struct.unpack("!BI", message[:5])
        check(not (incarnation == 1 and received[2]), "of the one that was killed, something came afterwards")
        check(number == received[incarnation], f"{number} of sender {incarnation} instead of {received[incarnation]}")
        received[incarnation] += 1
        data.sendto(message[:5], side.there(1))
    check(received[1] >= 500, "less has come than had been acknowledged")
    return {"before": received[1], "after": received[2]}


KILLED = {("sends", "killed-sender"), ("receives", "killed-receiver")}


def killed_once():
    """Runs one incarnation, which is killed after it has printed five hundred numbers; then another one, to its end."""
    for incarnation in (1, 2):
        command = [sys.executable, *sys.argv, "--incarnation", str(incarnation)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for count, line in enumerate(child.stdout, 1):
                if line.startswith("{"):
                    print(line, end="")
                if incarnation == 1 and count == 500:
                    child.kill()
    return child.returncode


# Messages to a silent peer are dropped when the program says so, and their room is free again.


def cancel_sends(side):
    data = side.socket(1, send_room=256 * 1024)
    nobody = (side.options.nobody, side.options.port)
    poll, queued = select.poll(), 0
    poll.register(data, select.POLLOUT)
    while succeeds(lambda: data.sendto(bytes(4096), socket.MSG_DONTWAIT, nobody)):
        queued += 1
        check(queued < 10000, "what nobody takes needs no room")
    check(not poll.poll(0), "a socket without room is writable")
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", nobody[1], socket.inet_aton(nobody[0]))
    data.setsockopt(socket.SOL_RDS, CANCEL_SENT_TO, address)
    check(poll.poll(10000), "what was cancelled takes room still")
    data.sendto(b"to somebody", side.there(1))
    side.hear("done")
    return {"cancelled": queued}


def cancel_receives(side):
    check(side.socket(1).recv(100) == b"to somebody", "another message came")
    side.tell("done")


# RDMA: the receiver has the memory; the sender writes to it, reads it, and adds to a number in it.


class Memory:
    def __init__(self, length, offset=100):
        """Memory with pages of its own, which begins inside the first one."""
        self.pages = mmap.mmap(-1, offset + length)
        self.bytes = memoryview(self.pages)[offset:offset + length]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages)) + offset

    def arguments(self, flags, cookie_address=0):
        """The arguments as a `struct rds_get_mr_args`."""
        return struct.pack("=4Q", self.address, len(self.bytes), cookie_address, flags)


def with_rdma(data, there, payload, cookie, pieces, flags, offset=0):
    """Sends a message after an operation on the peer's memory, and waits for the status of the operation."""
    vector = b"".join(struct.pack("=2Q", piece.address, len(piece.bytes)) for piece in pieces)
    local = ctypes.create_string_buffer(vector, len(vector))
    length = sum(len(piece.bytes) for piece in pieces)
    token = random.getrandbits(64)
    arguments = struct.pack("=7Q", cookie, offset, length, ctypes.addressof(local), len(pieces), flags | NOTIFY_ME, token)
    data.sendmsg([payload], [(socket.SOL_RDS, CMSG_RDMA_ARGS, arguments)], 0, there)
    return status_of(data, token)


def status_of(data, token):
    received, control, _, _ = data.recvmsg(LARGEST, 256)
    check(not received, "a message came before the status")
    (level, kind, value), = control
    check((level, kind) == (socket.SOL_RDS, CMSG_RDMA_STATUS), f"a control message {kind}")
    of, status = struct.unpack("=Qi", value[:12])
    check(of == token, "the status of something else")
    return RDMA_STATUS.get(status, status)


def receive_cookie(data):
    _, control, _, _ = data.recvmsg(LARGEST, 256)
    cookies = [struct.unpack("=Q", value)[0] for _, kind, value in control if kind == CMSG_RDMA_DEST]
    check(len(cookies) == 1, f"{len(cookies)} cookies with a message")
    return cookies[0]


def operations(side, data, cookie):
    """A write of two pieces, one into the middle, then a read."""
    first, second, patch, all_of_it = Memory(5000, 1), Memory(60000, 4000), Memory(700), Memory(65000, 9)
    first.bytes[:], second.bytes[:], patch.bytes[:] = content(65000)[:5000], content(65000)[5000:], content(700)
    there = side.there(1)
    for pieces, offset in ([first, second], 0), ([patch], 4090):
        status = with_rdma(data, there, b"written", cookie, pieces, READ_WRITE, offset)
        check(status == "success", f"a write: {status}")
    status = with_rdma(data, there, b"read", cookie, [all_of_it], 0)
    check(status == "success", f"a read: {status}")
    check(all_of_it.bytes == expected_memory(), "something else was read")


def expected_memory():
    expected = bytearray(content(65000))
    expected[4090:4790] = content(700)
    return bytes(expected)


def rdma_map_sends(side):
    """A message maps the memory and carries its cookie."""
    data = side.socket(1)
    operations(side, data, receive_cookie(data))
    side.hear("done")


def rdma_map_receives(side):
    data, memory = side.socket(1), Memory(65000)
    mapped = (socket.SOL_RDS, CMSG_RDMA_MAP, memory.arguments(READ_WRITE))
    data.sendmsg([b"mapped"], [mapped], 0, side.there(1))
    for word in (b"written", b"written", b"read"):
        check(data.recv(100) == word, "another message came")
    check(memory.bytes == expected_memory(), "something else was written")
    side.tell("done")


def rdma_register_sends(side):
    """The memory is registered separately, and its cookie is sent in a message; after it is freed, the cookie is invalid."""
    data = side.socket(1)
    cookie = receive_cookie(data)
    operations(side, data, cookie)
    side.hear("freed")
    status = with_rdma(data, side.there(1), b"", cookie, [Memory(100)], READ_WRITE)
    # A write over iWARP may be complete before the peer has refused it.
    possible = ("remote error", "success") if side.options.iwarp else ("remote error",)
    check(status in possible, f"a write to memory that was freed: {status}")
    # The connection that this has ended is established again.
    data.sendto(b"afterwards", side.there(1))
    side.hear("done")
    return {"freed": status}


def rdma_register_receives(side):
    data, memory, room = side.socket(1), Memory(65000), ctypes.c_uint64()
    data.setsockopt(socket.SOL_RDS, GET_MR, memory.arguments(READ_WRITE, ctypes.addressof(room)))
    cookie = struct.pack("=Q", room.value)
    data.sendmsg([b"registered"], [(socket.SOL_RDS, CMSG_RDMA_DEST, cookie)], 0, side.there(1))
    for word in (b"written", b"written", b"read"):
        check(data.recv(100) == word, "another message came")
    check(memory.bytes == expected_memory(), "something else was written")
    data.setsockopt(socket.SOL_RDS, FREE_MR, cookie + struct.pack("=Q", 0))
    side.tell("freed")
    while (message := data.recv(100)) != b"afterwards":
        check(message == b"", "another message came")
    check(memory.bytes == expected_memory(), "something was written after it was freed")
    side.tell("done")


def rdma_once_sends(side):
    """Memory that may be used once: the second use is refused."""
    data = side.socket(1)
    cookie = receive_cookie(data)
    statuses = [with_rdma(data, side.there(1), b"%d" % time, cookie, [Memory(100)], READ_WRITE) for time in (1, 2)]
    side.tell("statuses")
    check(statuses[0] == "success", f"the first time: {statuses[0]}")
    return {"second": statuses[1]}


def rdma_once_receives(side):
    data, memory = side.socket(1), Memory(100)
    mapped = (socket.SOL_RDS, CMSG_RDMA_MAP, memory.arguments(READ_WRITE | USE_ONCE))
    data.sendmsg([b"mapped"], [mapped], 0, side.there(1))
    check(data.recv(100) == b"1", "another message came")
    side.hear("statuses")


def atomic_sends(side):
    data, before = side.socket(1), Memory(8, 0)
    cookie, token = receive_cookie(data), 7
    arguments = struct.pack("=9Q", cookie, before.address, 0, 5, 0, 0, 0, NOTIFY_ME, token)
    data.sendmsg([b"added"], [(socket.SOL_RDS, CMSG_ATOMIC_FADD, arguments)], 0, side.there(1))
    status = status_of(data, token)
    check(status == "success", f"fetch and add: {status}")
    check(struct.unpack("=Q", before.bytes)[0] == 37, "another number was there")
    side.hear("done")


def atomic_receives(side):
    data, memory = side.socket(1), Memory(8, 0)
    memory.bytes[:] = struct.pack("=Q", 37)
    mapped = (socket.SOL_RDS, CMSG_RDMA_MAP, memory.arguments(READ_WRITE))
    data.sendmsg([b"mapped"], [mapped], 0, side.there(1))
    check(data.recv(100) == b"added", "another message came")
    check(struct.unpack("=Q", memory.bytes)[0] == 42, "another number is there")
    side.tell("done")


# The measurements.


def pingpong_sends(side):
    data, message = side.socket(1), bytes(8)
    count = side.options.count or 3000
    for number in range(200 + count):
        if number == 200:
            began = time.perf_counter()
        data.sendto(message, side.there(1))
        data.recv(16)
    return {"half_round_trip_us": round((time.perf_counter() - began) / count / 2 * 1e6, 2)}


def pingpong_receives(side):
    data = side.socket(1)
    for _ in range(200 + (side.options.count or 3000)):
        data.sendto(data.recv(16), side.there(1))


def throughput_sends(side):
    data, message = side.socket(1), bytes(65536)
    count = side.options.count or 1000
    began = time.perf_counter()
    for _ in range(count):
        data.sendto(message, side.there(1))
    side.hear("done")
    return {"mb_per_s": round(count * len(message) / (time.perf_counter() - began) / 1e6, 1)}


def throughput_receives(side):
    data, room = side.socket(1), bytearray(65536)
    for _ in range(side.options.count or 1000):
        check(data.recv_into(room) == len(room), "a message is cut")
    side.tell("done")


def exercise(options):
    function = globals()[f"{options.exercise.replace('-', '_')}_{options.role}"]
    side = Side(options)
    facts = function(side)
    # A process that ended first would withdraw the message that it has just sent.
    side.tell("bye")
    side.hears_within(2, "bye")
    return facts or {}


def overdue(_signal, _frame):
    raise Failure("not done in time")


def main():
    names = [name[:-len("_sends")].replace("_", "-") for name in globals() if name.endswith("_sends")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("sends", "receives"))
    parser.add_argument("exercise", choices=names)
    parser.add_argument("at", help="the address of this host")
    parser.add_argument("peer", help="that of the other one")
    parser.add_argument("--first", action="store_true", help="ask for the connection; else wait for the other one to ask")
    parser.add_argument("--port", type=int, default=4000)
    parser.add_argument("--count", type=int, help="how many messages or pings, where that is not fixed")
    parser.add_argument("--nobody", default="10.78.0.99", help="an address that nobody has, for cancel")
    parser.add_argument("--iwarp", action="store_true", help="the connection is one of iWARP")
    parser.add_argument("--seconds", type=int, default=120, help="how long this may take")
    parser.add_argument("--incarnation", type=int, choices=(1, 2), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.role, options.exercise) in KILLED and options.incarnation is None:
        return killed_once()
    signal.signal(signal.SIGALRM, overdue)
    signal.alarm(options.seconds)
    said = {"exercise": options.exercise, "role": options.role, "first": options.first}
    try:
        said |= exercise(options) | {"outcome": "ok"}
    except (Failure, OSError) as failure:
        said["outcome"] = f"{type(failure).__name__}: {failure}"
    print(json.dumps(said), flush=True)
    return 0 if said["outcome"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
