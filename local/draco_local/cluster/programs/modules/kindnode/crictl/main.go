// Command crictl answers what `kind load` asks of a node: `crictl inspecti IMAGE`, and `crictl images` for people.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const socket = "unix:///run/containerd/containerd.sock"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	connection, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := runtime.NewImageServiceClient(connection)
	if len(arguments) == 2 && arguments[0] == "inspecti" {
		return inspect(ctx, client, arguments[1])
	}
	if len(arguments) == 1 && arguments[0] == "images" {
		return list(ctx, client)
	}
	return errors.New("this crictl knows only `crictl inspecti IMAGE` and `crictl images`: use ctr -n k8s.io for the rest")
}

func inspect(ctx context.Context, client runtime.ImageServiceClient, name string) error {
	answer, err := client.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}})
	if err != nil {
		return err
	}
	image := answer.GetImage()
	if image == nil {
		return fmt.Errorf("no such image %q present", name)
	}
	status := map[string]any{"id": image.Id, "repoTags": image.RepoTags, "repoDigests": image.RepoDigests}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"status": status})
}

func list(ctx context.Context, client runtime.ImageServiceClient) error {
	answer, err := client.ListImages(ctx, &runtime.ListImagesRequest{})
	if err != nil {
		return err
	}
	for _, image := range answer.GetImages() {
		fmt.Println(image.Id, image.RepoTags, image.Size)
	}
	return nil
}
