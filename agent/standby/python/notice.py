"""Saving at the end of one step on all ranks (docs/preemption.md). sitecustomize.py runs this file
when the agent has written an order into the page, or when the program asks. It imports nothing that
is not built in, since imports are noted."""

ASKS = 1 << 63  # as kAsksItself in proto/worker_page.h


class Order:
    def __init__(self, word):
        self.word, self.is_taken, self.is_end = word, word & 1, word >> 40 & 1
        self.number, self.signo = (word & 0xFFFFFFFF) >> 1, word >> 32 & 0xFF


class NoticeTaker:
    STEP, ORDER, TAKEN = range(3)
    FUTEX = {"x86_64": 202, "aarch64": 98}  # the system call's number

    def __init__(self, hook):
        self.hook, self.words = hook, hook.orders
        self.call = self.FUTEX.get(os.uname().machine)
        self.told = 0  # the last order that should_save() has told

    def order(self):
        return Order(self.words[self.ORDER])

    def is_due(self):
        return self.hook.words[self.hook.STEPS] >= self.words[self.STEP]

    def step_done(self):
        """Returns the signal that this process must send to itself; 0: none."""
        order = self.order()
        while self.call and order.word and not order.is_taken and self.is_due():
            # FUTEX_WAIT: until the word changes. The interpreter is free meanwhile.
            self.hook.libc.syscall(self.call, self.hook.order_word, 0, order.word & 0xFFFFFFFF,
                                   None)
            order = self.order()
        taken = self.words[self.TAKEN]
        if not order.is_taken or taken & ASKS or taken == order.number or not self.is_due():
            return 0
        self.words[self.TAKEN] = order.number
        return order.signo if order.is_end or self.handles(order.signo) else 0

    def handles(self, signo):
        import _signal
        return signo and callable(_signal.getsignal(signo))

    def asked(self):
        """The order that is due; None: there is none."""
        self.words[self.TAKEN] |= ASKS
        order = self.order()
        if not order.is_taken or not self.is_due():
            return None
        self.words[self.TAKEN] = ASKS | order.number
        return order

    def ending(self):
        order = self.asked()
        return bool(order and order.is_end)

    def should_save(self):
        order = self.asked()
        is_new = bool(order) and order.number != self.told
        self.told = order.number if order else self.told
        return is_new
