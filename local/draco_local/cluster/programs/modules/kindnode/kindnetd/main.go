// Command kindnetd is the pod network of a node that kind made: it writes the network's configuration, keeps a route to the pods
// of every other node, and masquerades what pods send to the outside. It takes the environment that kind's manifest gives to the
// program of this name. It knows IPv4 only, and no NetworkPolicy.
package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	account     = "/var/run/secrets/kubernetes.io/serviceaccount/"
	networkFile = "/etc/cni/net.d/10-kindnet.conflist"
	busy        = time.Second
	calm        = 5 * time.Second
)

type node struct {
	Metadata struct{ Name string }
	Spec     struct{ PodCIDR string }
	Status   struct {
		Addresses []struct{ Type, Address string }
	}
}

// address returns the node's own IPv4 address; "" for one that cannot be routed to, such as a simulated node's.
func (n node) address() string {
	for _, each := range n.Status.Addresses {
		ip := net.ParseIP(each.Address)
		if each.Type == "InternalIP" && ip.To4() != nil && !ip.IsLoopback() {
			return each.Address
		}
	}
	return ""
}

func main() {
	log.SetFlags(log.LUTC | log.LstdFlags)
	self, pods := os.Getenv("HOST_IP"), os.Getenv("POD_SUBNET")
	masqueraded := false
	said := ""
	for {
		err := reconcile(self)
		if err == nil && !masqueraded {
			err = masquerade(pods)
			masqueraded = err == nil
		}
		pause := calm
		if err != nil {
			pause = busy
			if err.Error() != said {
				said = err.Error()
				log.Print(said)
			}
		}
		time.Sleep(pause)
	}
}

func reconcile(self string) error {
	nodes, err := nodes()
	if err != nil {
		return err
	}
	var failures []error
	for _, each := range nodes {
		address := each.address()
		if address == "" || each.Spec.PodCIDR == "" {
			continue
		}
		if address == self {
			failures = append(failures, configure(each.Spec.PodCIDR))
		} else {
			failures = append(failures, run("", "ip", "route", "replace", each.Spec.PodCIDR, "via", address))
		}
	}
	return errors.Join(failures...)
}

func nodes() ([]node, error) {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(account + "token") // each time: it is replaced before it expires
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	// The API server by the name that kind gives, if it does: the Service's address works only where kube-proxy runs already.
	service := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	endpoint := cmp.Or(os.Getenv("CONTROL_PLANE_ENDPOINT"), service)
	request, err := http.NewRequest(http.MethodGet, "https://"+endpoint+"/api/v1/nodes?resourceVersion=0", nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}
	response, err := (&http.Client{Timeout: 10 * time.Second, Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the API server answers %s when it is asked for nodes", response.Status)
	}
	var listed struct{ Items []node }
	err = json.NewDecoder(response.Body).Decode(&listed)
	return listed.Items, err
}

// configure writes which addresses the pods of this node get. The container runtime takes the file when it appears, whole.
func configure(pods string) error {
	addresses := map[string]any{
		"type":    "host-local",
		"dataDir": "/run/cni-ipam-state",
		"routes":  []any{map[string]any{"dst": "0.0.0.0/0"}},
		"ranges":  []any{[]any{map[string]any{"subnet": pods}}},
	}
	content, err := json.Marshal(map[string]any{
		"cniVersion": "0.3.1",
		"name":       "kindnet",
		"plugins": []any{
			map[string]any{"type": "ptp", "ipMasq": false, "ipam": addresses},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	})
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(networkFile); err == nil && bytes.Equal(old, content) {
		return nil
	}
	unfinished := networkFile + ".unfinished"
	if err := os.WriteFile(unfinished, content, 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, networkFile)
}

func masquerade(pods string) error {
	return run(fmt.Sprintf(`table ip kindnet {}
delete table ip kindnet
table ip kindnet {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr %[1]s ip daddr != { %[1]s, 224.0.0.0/4 } fib daddr type != local masquerade
	}
}
`, pods), "nft", "-f", "-")
}

func run(input, name string, arguments ...string) error {
	command := exec.Command(name, arguments...)
	command.Stdin = strings.NewReader(input)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(arguments, " "), err, bytes.TrimSpace(output))
	}
	return nil
}
