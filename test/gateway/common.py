"""What the tests of the gateway share: TAP, a gateway that runs, requests to it in plain Python."""
import atexit
import base64
import hashlib
import hmac
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

gateway = sys.argv[1]
folder = tempfile.mkdtemp(prefix='ojs-gateway.')
n = 0


def ok(good, name, said=''):
    global n
    n += 1
    print(('ok' if good else 'not ok'), n, '-', name, flush=True)
    if not good:
        print('#', said, flush=True)
    return good


def same(have, want, name):
    ok(have == want, name, f'have {have!r}, want {want!r}')


class Gateway:
    def __init__(self, *options, listen='127.0.0.1:0', environment={}, files=None, log=None):
        most = files and resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self.process = subprocess.Popen(
            [gateway, '--listen', listen, *options], stdout=subprocess.PIPE, text=True,
            stderr=log or (subprocess.DEVNULL if '-v' not in sys.argv else None), env={**os.environ, **environment},
            preexec_fn=files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))))
        atexit.register(self.process.kill)
        self.address = self.process.stdout.readline().split()[-1]
        self.path = self.address[5:] if self.address.startswith('unix:') else None
        self.port = None if self.path else int(self.address.rsplit(':', 1)[1])

    def socket(self, timeout=60):
        s = socket.socket(socket.AF_UNIX if self.path else socket.AF_INET)
        s.settimeout(timeout)
        s.connect(self.path or ('127.0.0.1', self.port))
        return s

    def connection(self, timeout=60):
        connection = http.client.HTTPConnection('127.0.0.1', self.port or 80, timeout=timeout)
        if self.path:
            connection.connect = lambda: setattr(connection, 'sock', self.socket(timeout))
        return connection

    def raw(self, sent):
        """The statuses of what comes back until the connection is closed, and all of it."""
        with self.socket() as s:
            s.sendall(sent)
            got = b''
            try:
                while piece := s.recv(65536):
                    got += piece
            except OSError:
                pass
        return [int(status) for status in re.findall(rb'HTTP/1\.1 (\d+) [A-Z]', got)], got

    def call(self, method, path, body=None, headers={}, connection=None):
        """Status, headers and JSON of one request."""
        connection = connection or self.connection()
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection.request(method, path, body, {'Content-Type': 'application/openjobspec+json', **headers}
            if body is not None else headers)
        response = connection.getresponse()
        text = response.read()
        return response.status, response.headers, json.loads(text) if text else None

    def push(self, queue, args=[], **options):
        return self.call('POST', '/ojs/v1/jobs', {'type': 'test.job', 'args': args,
            'options': {'queue': queue, **options}})[2]['job']

    def fetch(self, queue, wait=None, count=1, **more):
        headers = {'Prefer': f'wait={wait}'} if wait is not None else {}
        return self.call('POST', '/ojs/v1/workers/fetch', {'queues': [queue], 'worker_id': 'python', 'count': count},
            headers, **more)[2]['jobs']

    def end(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.process.wait(120)


def eventually(condition, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if condition():
                return True
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.02)
    return False


def takes(call, least, most):
    """Whether the call takes at least `least`, and at best less than `most`: a busy machine may be slow at times."""
    for _ in range(10):
        begun = time.monotonic()
        call()
        took = time.monotonic() - begun
        if not least < took:
            return False
        if took < most:
            return True
    return False


def sql(text):
    return subprocess.run(['psql', '-XAtqc', text], check=True, capture_output=True, text=True).stdout.strip()


def path_of(name, content):
    path = os.path.join(folder, name)
    with open(path, 'w') as file:
        file.write(content)
    os.chmod(path, 0o640)
    return path


def bearer(token, **headers):
    return {'Authorization': 'Bearer ' + token, **headers}


def encoded(data):
    return base64.urlsafe_b64encode(data if isinstance(data, bytes) else json.dumps(data).encode()).rstrip(b'=')


def hs256(secret):
    return lambda content: hmac.new(secret, content, hashlib.sha256).digest()


def jwt(sign, alg, **claims):
    content = encoded({'alg': alg, 'typ': 'JWT'}) + b'.' + encoded(
        {'role': 'ojs_producer', 'exp': time.time() + 600, **claims})
    return (content + b'.' + encoded(sign(content))).decode()


def finish():
    print(f'1..{n}')
    sys.exit(0)
