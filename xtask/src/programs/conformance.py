"""Runs tests of rdma-core's pyverbs suite and says what came of each, one line of JSON per event.

Arguments: the folder of the suite, then the names of tests or modules. A test that neither passes nor fails in time is
ended together with this process; the harness then starts anew behind it.
"""
import faulthandler
import json
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

PATIENCE_S = 60
folder, names = sys.argv[1], sys.argv[2:]
sys.path.insert(0, folder)
# The GID of an iWARP device ends with zeros, so the suite would ignore it as empty. The option selects it.
is_iwarp = os.environ.get('FERROCE_WIRE') == 'iwarp'
sys.argv[1:] = ['--dev', 'ferroce0'] + (['--gid', '0'] if is_iwarp else [])
# Line-buffered, on a descriptor that the tests do not redirect.
events = os.fdopen(os.dup(1), 'w', buffering=1)


def say(event, test, reason=''):
    events.write('FERROCE-EVENT ' + json.dumps([event, test.id(), str(reason)]) + '\n')


class Teller(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        say('start', test)
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        self.judged = False

    def judge(self, event, test, reason=''):
        self.judged = True
        say(event, test, reason)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        self.judge('pass', test)

    def addSkip(self, test, reason):
        self.judge('skip', test, reason)

    def addFailure(self, test, err):
        self.judge('fail', test, self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.judge('error', test, self._exc_info_to_string(err, test))

    def addExpectedFailure(self, test, err):
        self.judge('pass', test)

    def addUnexpectedSuccess(self, test):
        self.judge('fail', test, 'unexpected success')


def each(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from each(item)
        else:
            yield item


from args_parser import parser  # noqa: E402, found in the folder of the suite

tests = SourceFileLoader('tests', os.path.join(folder, '__init__.py')).load_module()
parser.parse_args()
suite = unittest.defaultTestLoader.loadTestsFromNames(names, tests)
chosen = list(each(suite))
for test in chosen:
    say('listed', test)
result = Teller()
unittest.TestSuite(chosen).run(result)
events.write('FERROCE-EVENT ["done", "", ""]\n')
events.flush()
# Threads or objects that the suite left behind must not affect the exit status.
sys.stdout.flush()
