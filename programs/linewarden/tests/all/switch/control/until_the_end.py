"""A controller that is connected when the switch stops. Usage: until_the_end.py HOST:PORT PID"""

import os
import signal
import sys
import threading

import grpc
import p4runtime_sh.shell as sh
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

address, switch = sys.argv[1], int(sys.argv[2])

# Without `config`, the shell reads the P4Info from the switch.
sh.setup(device_id=0, grpc_addr=address, election_id=(0, 1), config=None, verbose=False)
entry = sh.TableEntry("In.flows")(action="In.to_port")
entry.match["dst"], entry.action["port"] = "02:00:00:00:00:01", "1"
entry.insert()
assert len(list(sh.TableEntry("In.flows").read())) == 1
sh.teardown()

with grpc.insecure_channel(address) as channel:
    hello = p4runtime_pb2.StreamMessageRequest()
    hello.arbitration.election_id.low = 2
    ended = threading.Event()

    def requests():
        yield hello
        ended.wait()

    stream = p4runtime_pb2_grpc.P4RuntimeStub(channel).StreamChannel(requests())
    assert next(stream).arbitration.status.code == 0
    os.kill(switch, signal.SIGTERM)
    try:
        raise AssertionError(next(stream))
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        print(error.details())
    finally:
        ended.set()
