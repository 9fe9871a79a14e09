"""The source of one program that contains several of Kubernetes' programs, and acts as the one under whose name it runs.

Owns that source, written for the requested programs. They share most of their code, which is then linked and stored once: four
programs of 330 MB become one of 130 MB under four names. Each part does what its `main` in Kubernetes does.
"""

from collections.abc import Sequence

_SERVERS = {
    "kube-apiserver": "NewAPIServerCommand()",
    "kube-controller-manager": "NewControllerManagerCommand()",
    "kube-scheduler": "NewSchedulerCommand()",
    "kubelet": "NewKubeletCommand(context.Background())",
    "kube-proxy": "NewProxyCommand()",
}
PROGRAMS = ("kubectl", *_SERVERS)

_COMMON = {"fmt", "os", "path/filepath", "k8s.io/component-base/cli"}
_OF_SERVERS = {
    "_ time/tzdata",
    "_ k8s.io/component-base/logs/json/register",
    "_ k8s.io/component-base/metrics/prometheus/clientgo",
    "_ k8s.io/component-base/metrics/prometheus/version",
}
_OF_KUBECTL = {
    "_ k8s.io/client-go/plugin/pkg/client/auth",
    "k8s.io/component-base/logs",
    "k8s.io/kubectl/pkg/cmd",
    "k8s.io/kubectl/pkg/cmd/util",
}
_KUBECTL = """\
	case "kubectl":
		logs.GlogSetter(cmd.GetLogVerbosity(os.Args))
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			util.CheckErr(err)
		}
"""
_FILE = """\
package main

import (
%(imports)s
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
%(cases)s
	default:
		fmt.Fprintf(os.Stderr, "%%s is not one of the names that this program knows: %(names)s\\n", name)
		os.Exit(2)
	}
}
"""


def source(programs: Sequence[str]) -> str:
    """Return the Go file of a program that acts as each of `programs` under its name."""
    imports = set(_COMMON)
    cases = []
    for program in sorted(programs):
        if program == "kubectl":
            imports |= _OF_KUBECTL
            cases.append(_KUBECTL.rstrip())
            continue
        app = program.replace("-", "")
        imports |= _OF_SERVERS | {f"{app} k8s.io/kubernetes/cmd/{program}/app"}
        if program == "kubelet":
            imports.add("context")
        cases.append(f'\tcase "{program}":\n\t\tos.Exit(cli.Run({app}.{_SERVERS[program]}))')
    named = sorted((path, name) for name, _, path in (each.rpartition(" ") for each in imports))
    lines = [f'\t{name} "{path}"' if name else f'\t"{path}"' for path, name in named]
    return _FILE % {"imports": "\n".join(lines), "cases": "\n".join(cases), "names": ", ".join(sorted(programs))}
