// Command pause does nothing until it is told to stop: it holds a pod's namespaces, and stands in for programs that a node image
// must have and that no cluster of ours needs.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	told := make(chan os.Signal, 8)
	signal.Notify(told, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for which := range told {
		if which != syscall.SIGCHLD {
			return
		}
		for { // in a pod whose containers share their processes, it is the parent of orphans
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
