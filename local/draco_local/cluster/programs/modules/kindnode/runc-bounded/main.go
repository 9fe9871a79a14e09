// Command runc-bounded is runc for a machine whose root lacks capabilities. Docker gives a privileged container all that it knows
// of, and runc refuses to set one that is not in the bounding set: this program strikes those out first.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// In the order of their numbers (linux/capability.h).
var names = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runc-bounded:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	lacking, err := outsideOfBounds()
	if err != nil {
		return err
	}
	if file := described(arguments); file != "" && len(lacking) > 0 {
		if err := strike(file, lacking); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{runc}, arguments...), os.Environ())
}

func outsideOfBounds() ([]string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		if digits, found := strings.CutPrefix(line, "CapBnd:"); found {
			bounds, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 64)
			if err != nil {
				return nil, err
			}
			var lacking []string
			for number, name := range names {
				if bounds>>number&1 == 0 {
					lacking = append(lacking, "CAP_"+name)
				}
			}
			return lacking, nil
		}
	}
	return nil, fmt.Errorf("/proc/self/status has no line CapBnd")
}

// described returns the file that describes the process to start: a bundle's, or that of `runc exec`.
func described(arguments []string) string {
	for index, argument := range arguments {
		option, value, joined := strings.Cut(argument, "=")
		if !joined && index+1 < len(arguments) {
			value = arguments[index+1]
		}
		switch option {
		case "--bundle", "-b":
			return filepath.Join(value, "config.json")
		case "--process", "-p":
			return value
		}
	}
	return ""
}

func strike(file string, lacking []string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	process := document // a file of `runc exec` is the process itself
	if inner, found := document["process"].(map[string]any); found {
		process = inner
	}
	sets, _ := process["capabilities"].(map[string]any)
	for which, set := range sets {
		listed, _ := set.([]any)
		sets[which] = slices.DeleteFunc(listed, func(name any) bool {
			text, _ := name.(string)
			return slices.Contains(lacking, text)
		})
	}
	content, err = json.Marshal(document)
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}
