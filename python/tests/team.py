"""Two processes that wait for work: a process group on gloo, made once for all tests that need more than one."""

import os
import socket
import traceback

import torch
import torch.distributed as dist
from torch import multiprocessing

SIZE = 2


def _work(rank, port, inbox, outbox):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(SIZE),
                      LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=SIZE)
    while (task := inbox.get()) is not None:
        function, arguments = task
        torch.manual_seed(1234)
        try:
            outbox.put((rank, function(rank, *arguments), None))
        except BaseException as problem:
            outbox.put((rank, None, f"{type(problem).__name__}: {problem}\n{traceback.format_exc()}"))
    dist.destroy_process_group()


class Team:
    """team(function, *arguments) is what function(rank, *arguments) answers in each process, by rank."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        self.inboxes, self.outbox = [context.SimpleQueue() for _ in range(SIZE)], context.Queue()
        self.processes = [context.Process(target=_work, args=(rank, port, inbox, self.outbox), daemon=True)
                          for rank, inbox in enumerate(self.inboxes)]
        for process in self.processes:
            process.start()

    def __call__(self, function, *arguments):
        for inbox in self.inboxes:
            inbox.put((function, arguments))
        answers = sorted((self.outbox.get(timeout=120) for _ in self.inboxes), key=lambda answer: answer[0])
        problems = [problem for _, _, problem in answers if problem]
        if problems:
            raise AssertionError("\n".join(problems))
        return [answer for _, answer, _ in answers]

    def end(self):
        for inbox in self.inboxes:
            inbox.put(None)
        for process in self.processes:
            process.join(20)
            process.kill()
