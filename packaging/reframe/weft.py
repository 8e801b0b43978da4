# ReFrame's tests of an installed Weft: that training learns, and how fast.
#   reframe -C SITE.py -c packaging/reframe/weft.py -r
# `weft` comes from PATH, or of the environment's module that a site names with -m.
import reframe as rfm
import reframe.utility.sanity as sn

CONFIG = '''{"model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 64,
  "num_experts": 4, "position_embedding_type": "rope"},
 "train": {"micro_batch_size": 4, "global_batch_size": 16, "train_iters": 20, "lr": 1e-2, "lr_decay_style": "constant"},
 "data": {"data_path": "text"}}'''


@rfm.simple_test
class WeftTrain(rfm.RunOnlyRegressionTest):
    descr = 'trains a small mixture of experts'
    valid_systems = ['*']
    valid_prog_environs = ['*']
    mesh = parameter(['tp=1', 'tp=2,pp=2'])
    steps = 20
    executable = 'weft'
    maintainers = ['weft@example.org']
    tags = {'production', 'training'}
    local = True  # weft starts its own mpirun

    @run_before('run')
    def write_config(self):
        self.prerun_cmds = [
            f"cat >config.json <<'END'\n{CONFIG}\nEND",
            'seq 1 5000 >text.txt',  # what comes next is learnt within a few steps
            'weft prepare text.txt --out text',
        ]
        self.executable_opts = ['train', 'config.json', '--out', 'run', '--mesh', self.mesh]
        self.postrun_cmds = ['weft inspect run']

    @deferrable
    def column(self, key):
        return sn.extractall(rf'"{key}": ([-+0-9.e]+)', 'run/metrics.jsonl', 1, float)

    @sanity_function
    def loss_falls(self):
        loss = self.column('loss')
        return sn.all([
            sn.assert_eq(sn.count(loss), self.steps),
            sn.assert_lt(loss[-1], 0.7 * loss[0], msg='the last loss, {0}, is not below 0.7 of the first, {1}'),
        ])

    @performance_function('tokens/s')
    def tokens_per_s(self):
        rates = self.column('tokens_per_s')
        return sn.sum(rates[-5:]) / 5
