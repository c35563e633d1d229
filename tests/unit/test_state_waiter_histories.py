"""Random histories of processes that wait for locks, against a model of what each really does."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nfsd.state import LockDenied, Nfs4Error
from nfsd.state.types import UINT64_MAX
from nfsd.state.waiters import ANSWER, KEEP, LONGEST_POLL
from tests.unit.state_support import World
from tests.unit.test_state_waiters import DEADLOCK, Party

PARTIES, FILES = 3, 2


class WaitHistories(RuleBasedStateMachine):
    """Processes that take, wait for and release whole-file locks, get interrupted silently, and answer calls or do not.

    The model knows what each process really does; the server only hears its requests.
    """

    def __init__(self):
        super().__init__()
        self.world = World()
        self.parties = [Party(self.world, b"%d" % index, index % 3) for index in range(PARTIES)]
        self.holder = [None] * FILES
        self.waits = [None] * PARTIES
        self.stopped = [(None, -1e9)] * PARTIES
        """What each waited for last when it was interrupted, and when."""
        self.deadlocks = 0

    def key(self, file):
        return b"file %d" % file

    def blocked_or_lately(self, index):
        """What a process waits for, or waited for so lately that the server cannot know better."""
        if self.waits[index] is not None:
            return self.waits[index]
        file, when = self.stopped[index]
        called = self.parties[index].client.record.minor
        return file if self.world.clock.now - when <= (ANSWER if called else LONGEST_POLL + KEEP) else None

    def cycle(self, index, waits):
        seen = set()
        at = index
        while True:
            file = waits(at)
            if file is None or self.holder[file] is None:
                return False
            at = self.holder[file]
            if at == index:
                return True
            if at in seen:
                return False
            seen.add(at)

    def request(self, index, file, wait):
        """The process asks; what the server answers must fit the model."""
        party = self.parties[index]
        try:
            party.ask(self.key(file), 0, UINT64_MAX, wait=wait)
        except LockDenied:
            if wait:
                self.waits[index] = file
            if self.holder[file] is None:
                assert any(waiter for waiter in self.opens(file)), "refused for nobody's sake"
            return
        except Nfs4Error as error:
            if error.status != DEADLOCK or not wait:
                raise
            self.waits[index] = file
            assert self.cycle(index, self.blocked_or_lately), "a deadlock that there is not"
            self.waits[index] = None
            self.deadlocks += 1
            return
        assert self.holder[file] in (None, index), "granted over another's lock"
        self.holder[file] = index
        self.waits[index] = None

    def opens(self, file):
        state = self.world.engine.opens.file(self.key(file))
        return state.waiters if state is not None else []

    @rule(index=st.integers(0, PARTIES - 1), file=st.integers(0, FILES - 1), wait=st.booleans())
    def lock(self, index, file, wait):
        if self.waits[index] is None:
            self.request(index, file, wait)
        else:
            self.request(index, self.waits[index], True)  # it polls

    @rule(index=st.integers(0, PARTIES - 1), other=st.integers(0, PARTIES - 1))
    def want(self, index, other):
        """One half of many a deadlock: a process that holds something waits for what another holds."""
        for one, file in ((index, 0), (other, 1)):
            if self.waits[one] is None and self.holder[file] is None:
                self.request(one, file, False)
        if self.waits[index] is None and 0 in self.holder and index != other:
            self.request(index, 1, True)

    @rule(index=st.integers(0, PARTIES - 1), file=st.integers(0, FILES - 1))
    def release(self, index, file):
        if self.waits[index] is None and self.holder[file] == index:
            self.parties[index].release(self.key(file))
            self.holder[file] = None

    @rule(index=st.integers(0, PARTIES - 1), seconds=st.sampled_from([0.0, ANSWER + 1, LONGEST_POLL + KEEP + 1]))
    def interrupt(self, index, seconds):
        if self.waits[index] is not None:
            self.stopped[index] = (self.waits[index], self.world.clock.now)
            self.waits[index] = None
            self.time(seconds)

    @rule(answer=st.booleans())
    def calls(self, answer):
        for waiter in self.world.engine.locks.waits.notices():
            index = int(waiter.client.owner)
            waiting = self.waits[index]
            if answer and waiting is not None and self.key(waiting) == waiter.file.key:
                self.request(index, waiting, True)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 31.0]))
    def time(self, seconds):
        for party in self.parties:
            party.client.record.renew()
        self.world.pass_time(seconds)

    @rule()
    def everybody_polls(self):
        """In bounded time whoever really is in a deadlock learns of it, and whoever can go on does."""
        for _ in range(8):
            self.world.clock.now += 1.0
            self.calls(True)
            for index in range(PARTIES):
                if self.waits[index] is not None:
                    self.request(index, self.waits[index], True)
        for index in range(PARTIES):
            assert not self.cycle(index, lambda at: self.waits[at]), "a deadlock nobody was told of"
            if self.waits[index] is not None:
                assert self.holder[self.waits[index]] is not None or len(self.opens(self.waits[index])) > 1

    @invariant()
    def queues_hold_who_waits(self):
        table = self.world.engine.locks.waits
        for file in range(FILES):
            for waiter in self.opens(file):
                assert waiter.file is self.world.engine.opens.file(self.key(file))
        assert sum(table._counts.values()) == sum(len(self.opens(file)) for file in range(FILES))


WaitHistories.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestWaitHistories = WaitHistories.TestCase
